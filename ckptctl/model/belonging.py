"""What the name of a file in a checkpoint's directory says: that it belongs to it, or who left it there.

A commit promises what belongs and no more, so that nobody's log or temporary file makes a good
checkpoint unusable once it is gone.
"""

from __future__ import annotations

import re

from ckptctl.pattern import pattern

_NFS, _FUSE = r"\.nfs[0-9a-fA-F]{4,}", r"\.fuse_hidden[0-9a-fA-F]+"
_CLUTTER: tuple[tuple[str, str], ...] = (
    (
        (
            r"\.(?!_[^_]).+\.(?:[^.]+\.(?!distcp|pickle)[A-Za-z0-9]{6}"
            r"|(?:distcp|safetensors|metadata|pth?|ckpt|bin|json)\.[A-Za-z0-9]{4,12})"
            r"|\.\..+\.[A-Za-z0-9]{6}"
        ),
        "a temporary file of rsync",
    ),
    (r"\._.+", "an AppleDouble file, which macOS writes beside the file of that name"),
    (r"\.DS_Store|\.localized|Icon\r|\.apdisk|\.VolumeIcon\.icns", "a file of the macOS Finder"),
    (r"Thumbs\.db|ehthumbs\.db|desktop\.ini", "a file of the Windows Explorer"),
    (_NFS, "a deleted file that NFS keeps while a process has it open"),
    (_FUSE, "a deleted file that FUSE keeps while a process has it open"),
    (r"\..+\.sw[a-p]|.+~|#.+#|\.#.+|~\$.+|\.~lock\..+#", "a file of an editor"),
    (r"events\.out\.tfevents\..+", "events for TensorBoard"),
    (r".+\.(?:log|out|err)(?:\.\d+)?(?:\.gz)?", "a log"),
)
_TEMPORARY: tuple[tuple[str, str], ...] = (
    (r".+\.[0-9a-fA-F]{8}", "a temporary file of a download"),
    (r".+_\.gstmp|\.syncthing\..+|\.goutputstream-\w+", "a temporary file of a copy"),
    (
        r".+\.(?:part|partial|filepart|crdownload|incomplete|download|aria2|tmp|temp)",
        "a temporary file of a copy or of a save",
    ),
    (r"core(?:\.\d+)?|.+\.(?:pid|lock|pyc|prof)", "a file that a process left"),
)
_FOREIGN_FOLDERS = pattern(
    r"__pycache__|\.git|\.ipynb_checkpoints|\.AppleDouble|\.Spotlight-V100|\.Trashes|\.fseventsd"
    r"|\.Trash(?:-\d+)?|\$RECYCLE\.BIN|@eaDir|\.snapshots?|lost\+found|\.rsync-partial|\.~tmp~"
    r"|wandb|tensorboard|tb_logs|lightning_logs|mlruns|logs?|\.cache"
)
_COMPANIONS = pattern(
    r"\.metadata|__\d+\.metadata|\.?metadata\.json|integrity\.json"
    r"|(?:.*[_.-])?(?:config|args|state|params|hparams|hyper_?params)(?:_dict)?(?:[_-][\w-]+)?"
    r"\.(?:json|ya?ml|toml)"
    r"|.+\.index\.json"
    r"|tokenizer.*|special_tokens_map\.json|added_tokens\.json|vocab\.(?:json|txt)|merges\.txt"
    r"|chat_template.*|.+\.model"
)
_STATE = pattern(
    r".+\.(?:distcp|pt|pth|ckpt|safetensors|bin|pkl|pickle|npz|npy|msgpack|h5)", re.IGNORECASE
)


def clutter(path: str) -> str:
    """Say what a file is that no writer of checkpoints would ever give such a name; else nothing."""
    return _named(path.rpartition("/")[2], _CLUTTER)


def deleted(name: str) -> bool:
    """Tell whether a file was deleted and is only there while a process has it open."""
    return re.fullmatch(f"{_NFS}|{_FUSE}", name) is not None


def foreign(path: str) -> str:
    """Say what a file is that some program leaves in any directory; empty for any other."""
    *folders, name = path.split("/")
    for folder in folders:
        if _FOREIGN_FOLDERS.fullmatch(folder):
            return f"in {folder}, which is no part of a checkpoint"
    return _named(name, _CLUTTER) or _named(name, _TEMPORARY)


def _named(name: str, patterns: tuple[tuple[str, str], ...]) -> str:
    return next((words for pattern, words in patterns if re.fullmatch(pattern, name)), "")


def belongs(path: str) -> bool:
    """Tell whether a file is one that frameworks keep in a checkpoint, by its name alone.

    That is what holds state, what a model is loaded with, and what says of which step it is.
    """
    name = path.rpartition("/")[2]
    known = _COMPANIONS.fullmatch(name) or _STATE.fullmatch(name)
    return known is not None and not foreign(path)
