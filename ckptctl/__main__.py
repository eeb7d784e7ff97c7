"""Entry point of ``ckptctl`` and of ``python -m ckptctl``."""

import atexit
import os
import sys
import threading

from ckptctl.cli.main import main as _main


def main() -> None:
    """Run the command line and end the process.

    What Python does last is to take apart all that was imported, which takes a tenth of a short
    command. Where no thread is left and nobody asked to be called at the end, that is left out.
    """
    try:
        _main()
    except SystemExit as end:
        code = end.code or 0
        alone = threading.active_count() == 1 and not atexit._ncallbacks()  # noqa: SLF001
        if not isinstance(code, int) or not alone:
            raise
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            raise end from None  # Python says what it says of such a stream
        os._exit(code)


if __name__ == "__main__":
    main()
