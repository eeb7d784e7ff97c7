"""Publishing for tests: the command line in this process, killed loops, races and stores that watch.

Run as a program (``python -m support.publish PART``) it is a helper process: ``nursery`` runs
training loops and kills them, ``race`` starts several command lines at one moment, ``moto`` serves
an S3 that takes one request at a time, so that its conditions are atomic.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ckptctl import protocol
from ckptctl.hashing import DEFAULT, Hasher
from ckptctl.model.manifest import FileRecord, Receipt
from ckptctl.operations.catalog.resolve import ResolveOptions, resolve
from ckptctl.operations.find import find, locate
from ckptctl.operations.place import Place
from ckptctl.operations.publish.commit import CommitOptions, commit_checkpoint
from ckptctl.operations.publish.promote import promote
from ckptctl.operations.retention.execute import carry_out
from ckptctl.operations.retention.plan import plan
from ckptctl.operations.retention.policy import Policy
from ckptctl.storage import Entry, Reader, WritableStore, open_store
from ckptctl.storage.posix import PosixStore
from ckptctl.storage.system import RealSystem
from conftest import FIXTURES, ROOT
from support import damage
from support.cli import Ended
from support.cli import run as ckptctl
from support.effort import PATIENCE

RANKS = 4
SOURCES = ("fsdp2/step-8", "fsdp2/step-12")
"""Two saves of one run, whose files are of equal sizes: a mixture shows in digests alone."""

# ---------------------------------------------------------------------------------- command line


def done(*args: str | Path, env: Mapping[str, str] | None = None) -> Ended:
    """Run the command line and insist that it ends well."""
    ended = ckptctl(*args, env=env)
    assert ended.code == 0, (args, ended)
    return ended


def refused(*args: str | Path, code: int = 5) -> str:
    """Run the command line, insist on an exit code and on a silent stdout, and return stderr."""
    ended = ckptctl(*args)
    assert (ended.code, ended.stdout) == (code, ""), (args, ended)
    return ended.stderr


def findings(checkpoint: str | Path, *options: str) -> dict[str, list[dict[str, Any]]]:
    """Verify by the command line; return the findings by check, and insist on the exit code."""
    ended = ckptctl("verify", checkpoint, "--json", *options)
    (result,) = ended.json()["checkpoints"]
    found: dict[str, list[dict[str, Any]]] = {}
    for one in result["report"]["findings"]:
        found.setdefault(one["check"], []).append(one)
    errors = [one for many in found.values() for one in many if one["severity"] == "error"]
    assert ended.code == (10 if errors else 0), ended
    return found


def errors(found: Mapping[str, list[dict[str, Any]]]) -> set[str]:
    """Return the ids of the checks that found an error."""
    return {name for name, many in found.items() if many[0]["severity"] == "error"}


# ---------------------------------------------------------------------------------- checkpoints


def planted(root: Path, steps: Iterable[int], *, committed: bool = True) -> Path:
    """Fill a root with checkpoints ``step-N``, alike in their bytes, committed in this order."""
    for step in steps:
        shutil.copytree(FIXTURES / "fsdp2/step-12", root / f"step-{step}")
        if committed:
            done("commit", root / f"step-{step}")
    return root


def place_of(
    path: Path, opener: Callable[[str], WritableStore] = PosixStore
) -> tuple[WritableStore, Place]:
    """Open the one checkpoint at a path through the store that its root makes."""
    store, (place,) = locate(str(path), opener)
    return store, place


def digest_of(data: bytes, algorithm: str = DEFAULT) -> str:
    """Return the digest of some bytes as records have it."""
    hasher = Hasher(algorithm)
    hasher.update(data)
    return hasher.text()


def receipt_of(checkpoint: Path, rank: int, **changes: Any) -> Receipt:
    """Make the receipt of one rank for the files that it has written."""
    names = [f"__{rank}_0.distcp", *([".metadata"] if rank == 0 else [])]
    records = []
    for name in names:
        data = (checkpoint / name).read_bytes()
        records.append(FileRecord(name, len(data), digest_of(data), rank))
    fields: dict[str, Any] = {
        "rank": rank,
        "world_size": RANKS,
        "step": 12,
        "files": tuple(records),
        "run_id": "run-a",
        "save_id": "save-a",
    }
    return Receipt(**{**fields, **changes})


def stage_all(checkpoint: Path, changes: Mapping[int, Mapping[str, Any]] | None = None) -> None:
    """Stage the receipts of all ranks, those of some with changes."""
    store = PosixStore(checkpoint.parent)
    for rank in range(RANKS):
        receipt = receipt_of(checkpoint, rank, **(changes or {}).get(rank, {}))
        protocol.stage(store, checkpoint.name, receipt)


def flip_payload(path: Path) -> None:
    """Turn over a bit of a matrix's data in the shard of rank 1."""
    metadata = damage.metadata_of(path)
    fqn, origin = next(
        (key.fqn, tuple(key.offset))
        for key, info in metadata.storage_data.items()
        if info.relative_path == "__1_0.distcp"
        and key.fqn.startswith("model.")
        and len(key.offset or ()) == 2
    )
    damage.flip_field(path, fqn=fqn, origin=origin, record="data/0", field="data", part="data")


# ---------------------------------------------------------------------------------- watching stores


class Watched(PosixStore):
    """A POSIX store that remembers what is read and deleted, and may lie about bytes.

    ``disturb`` gets the path, the number of times it was opened before, the position and the
    bytes, and returns those to hand out.
    """

    def __init__(
        self, root: str, disturb: Callable[[str, int, bytes], bytes] | None = None
    ) -> None:
        super().__init__(root)
        self.read: dict[str, int] = {}
        self.opened: dict[str, int] = {}
        self.deleted: list[str] = []
        self.disturb = disturb
        self.lock = threading.Lock()

    def open(self, path: str) -> Any:
        with self.lock:
            number = self.opened.get(path, 0)
            self.opened[path] = number + 1
        return WatchedReader(self, path, number, super().open(path))

    def delete(self, path: str, *, durable: bool = False) -> None:
        self.deleted.append(path)
        super().delete(path, durable=durable)


class WatchedReader:
    """A reader that counts for its store."""

    def __init__(self, store: Watched, path: str, number: int, inner: Reader) -> None:
        self._store, self._path, self._number, self._inner = store, path, number, inner

    @property
    def size(self) -> int:
        return self._inner.size

    def _passed(self, data: bytes) -> bytes:
        with self._store.lock:
            self._store.read[self._path] = self._store.read.get(self._path, 0) + len(data)
        disturb = self._store.disturb
        return disturb(self._path, self._number, data) if disturb else data

    def read(self, start: int, stop: int) -> bytes:
        return self._passed(self._inner.read(start, stop))

    def read_into(self, start: int, buffer: memoryview) -> None:
        buffer[:] = self.read(start, start + len(buffer))

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> WatchedReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Stopping(Watched):
    """A store whose machine dies at its n-th delete."""

    def __init__(self, root: str, *, after: int) -> None:
        super().__init__(root)
        self.after = after

    def delete(self, path: str, *, durable: bool = False) -> None:
        if len(self.deleted) == self.after:
            raise Died
        super().delete(path, durable=durable)


class Died(BaseException):
    """The machine is gone; nothing catches this."""


class Silent(PosixStore):
    """A store whose listings work and whose objects cannot be read."""

    def entries(self, path: str = "") -> list[Entry]:
        return super().entries(path)

    def open(self, path: str) -> Any:
        from ckptctl.errors import StorageError

        raise StorageError(f"{path}: Input/output error")


# ---------------------------------------------------------------------------------- a killed loop


@dataclass
class Source:
    """The bytes of one save: what each rank writes, and the metadata."""

    shards: dict[str, bytes]
    metadata: bytes


def load_source(case: str) -> Source:
    """Read a fixture into memory."""
    top = FIXTURES / case
    names = [f"__{rank}_0.distcp" for rank in range(RANKS)]
    return Source({n: (top / n).read_bytes() for n in names}, (top / ".metadata").read_bytes())


def source_of(step: int, sources: list[Source]) -> Source:
    """Neighbouring steps have different bytes."""
    return sources[step % len(sources)]


class Telling:
    """The operating system, which says of each call that it comes, by one byte into a pipe."""

    def __init__(self, tell: int) -> None:
        self._tell, self._real = tell, RealSystem()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._real, name)

        def told(*args: Any) -> Any:
            self.now()
            return call(*args)

        return told

    def now(self) -> None:
        """Say that something comes."""
        os.write(self._tell, b".")


def _write(path: Path, data: bytes, system: Telling) -> None:
    with path.open("wb") as stream:
        for start in range(0, len(data), 8192):
            system.now()
            stream.write(data[start : start + 8192])
            stream.flush()
        stream.flush()
        os.fsync(stream.fileno())


def _work(root: Path, step: int, rank: int, save_id: str, source: Source, system: Telling) -> None:
    """What one rank does in a save: its shard, durable, and then its receipt."""
    checkpoint = root / f"step-{step}"
    name = f"__{rank}_0.distcp"
    files = {name: source.shards[name], **({".metadata": source.metadata} if rank == 0 else {})}
    for path, data in files.items():
        _write(checkpoint / path, data, system)
    records = tuple(FileRecord(p, len(d), digest_of(d), rank, step) for p, d in files.items())
    receipt = Receipt(
        rank=rank, world_size=RANKS, step=step, files=records, run_id="run", save_id=save_id
    )
    protocol.stage(PosixStore(root, system=system), checkpoint.name, receipt)


def _save(root: Path, step: int, source: Source, system: Telling) -> None:
    checkpoint = root / f"step-{step}"
    shutil.rmtree(checkpoint, ignore_errors=True)  # what a killed save of this step has left
    checkpoint.mkdir()
    save_id = f"{step}-{os.getpid()}"
    pids = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            _end_after(partial(_work, root, step, rank, save_id, source, system))
        pids.append(pid)
    for pid in pids:
        if os.waitpid(pid, 0)[1] != 0:
            raise RuntimeError("a rank failed")


def _end_after(action: Callable[[], object]) -> None:
    """Do something and leave the forked process at once, whatever happens."""
    code = 1
    try:
        action()
        code = 0
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _train(root: Path, step: int, acknowledged: Path, sources: list[Source], tell: int) -> None:
    """Save, commit, promote and acknowledge, step by step, until killed."""
    system = Telling(tell)
    opener = partial(PosixStore, system=system)
    system.now()
    with acknowledged.open("ab", buffering=0) as stream:
        while True:
            step += 1
            _save(root, step, source_of(step, sources), system)
            store, place = place_of(root / f"step-{step}", opener)
            commit_checkpoint(store, place, options=CommitOptions(workers=1))
            promote(store, place_of(root / f"step-{step}", opener)[1], quick=True, workers=1)
            stream.write(f"{step}\n".encode())
            os.fsync(stream.fileno())
            if step % 3 == 0:
                list(carry_out(store, plan(store, Policy(keep_last=2, min_age=0))))


def _nursery() -> None:
    """For each line ``ROOT STEP ACKNOWLEDGED CALLS`` run a loop and kill it at so many of them."""
    sources = [load_source(case) for case in SOURCES]
    for line in sys.stdin:
        root, step, acknowledged, calls = json.loads(line)
        ears, tell = os.pipe()
        leader = os.fork()
        if leader == 0:
            os.setsid()
            _end_after(partial(_train, Path(root), step, Path(acknowledged), sources, tell))
        os.close(tell)
        for _ in range(calls):
            os.read(ears, 1)
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        while os.read(ears, 4096):  # all of its processes hold the other end
            pass
        os.close(ears)
        status = os.waitpid(leader, 0)[1]
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


Loop = Callable[[Path, int, Path, int], int]
"""Runs a loop in a root from a step on, acknowledging to a file, until so many of its calls."""


@contextmanager
def nursery(errors_to: Path) -> Iterator[Loop]:
    """Yield what runs a loop for a while and kills it; it returns the leader's exit status."""
    with errors_to.open("wb") as stream, _helper("nursery", stderr=stream) as process:

        def run(root: Path, step: int, acknowledged: Path, calls: int) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            line = json.dumps([str(root), step, str(acknowledged), calls])
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, "the nursery is gone"
            return int(answer)

        yield run


# ---------------------------------------------------------------------------------- races


def race(
    commands: Iterable[Iterable[str | Path]], env: Mapping[str, str] | None = None
) -> list[Ended]:
    """Run command lines at the same moment, each as an actor ``racer-N`` of its own."""
    spec = json.dumps([[str(word) for word in one] for one in commands])
    with _helper("race", env=env) as process:
        out, _ = process.communicate(spec.encode(), timeout=PATIENCE)
    return [Ended(*one) for one in json.loads(out)]


def _race() -> None:
    """Fork one process for each command line, let them go together, and print how they ended."""
    if "AWS_ENDPOINT_URL" in os.environ:
        import s3fs  # noqa: F401 - so that it is not what the racers spend their time on
    spec = json.load(sys.stdin)
    gate, start = os.pipe()
    all_there, there = os.pipe()
    ends = [_racer(number, words, gate, start, there) for number, words in enumerate(spec)]
    os.close(gate)
    for _ in ends:
        os.read(all_there, 1)
    os.close(start)
    results = []
    for end in ends:
        with os.fdopen(end, "rb") as stream:
            results.append(json.loads(stream.read()))
    for _ in ends:
        os.wait()
    print(json.dumps(results))


def _racer(number: int, words: list[str], gate: int, start: int, there: int) -> int:
    ours, theirs = os.pipe()
    if os.fork():
        os.close(theirs)
        return ours
    os.close(start)

    def go() -> None:
        os.write(there, b".")
        os.read(gate, 1)
        ended = ckptctl(*words, env={"CKPTCTL_ACTOR": f"racer-{number}"})
        with os.fdopen(theirs, "wb") as stream:
            stream.write(json.dumps([ended.code, ended.stdout, ended.stderr]).encode())

    _end_after(go)
    return ours


# ---------------------------------------------------------------------------------- S3


def _moto() -> None:
    """Serve S3 on a free port, one request at a time; print the port."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *args: object) -> None:
            pass

    app, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def one_at_a_time(environ: Any, start_response: Any) -> Any:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with lock:
            return app(environ, start_response)

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=Quiet)
    print(server.server_port, flush=True)
    server.serve_forever()


@contextmanager
def s3_server() -> Iterator[str]:
    """Run an S3 server in a process of its own; yield its address."""
    with _helper("moto", stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield f"http://127.0.0.1:{port}"


def s3_environment(endpoint: str) -> dict[str, str]:
    """Return what a client needs to know."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@dataclass
class Bucket:
    """A bucket seen by Amazon's own client, past ckptctl and past any proxy."""

    client: Any
    name: str
    prefixes: list[str] = field(default_factory=list)

    def upload(self, directory: Path, prefix: str) -> str:
        """Store a directory below a prefix; return its URL."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                key = f"{prefix}/{path.relative_to(directory).as_posix()}"
                self.put(key, path.read_bytes())
        return f"s3://{self.name}/{prefix}"

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def get(self, key: str) -> bytes:
        data = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        assert isinstance(data, bytes)
        return data

    def keys(self, prefix: str = "") -> list[str]:
        """List all keys below a prefix."""
        pages = self.client.get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=self.name, Prefix=prefix)
        return [one["Key"] for page in found for one in page.get("Contents", ())]


@contextmanager
def bucket(endpoint: str, name: str) -> Iterator[Bucket]:
    """Make a bucket."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=name)
    yield Bucket(client, name)
    client.close()


# ---------------------------------------------------------------------------------- helpers


@contextmanager
def _helper(
    part: str, *, env: Mapping[str, str] | None = None, stderr: Any = None
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "support.publish", part],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), **(env or {})},
    )
    try:
        yield process
    finally:
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait()


def newest(root: Path, *, full: bool = False) -> tuple[int, Path]:
    """Resolve by the library; return the step and the path."""
    found = resolve(open_store(root), options=ResolveOptions(full=full, workers=1))
    assert found.step is not None
    return found.step, root / found.name


def places(root: Path) -> list[Place]:
    """Find all checkpoints of a root."""
    return find(open_store(root))


if __name__ == "__main__":
    {"nursery": _nursery, "race": _race, "moto": _moto}[sys.argv[1]]()
