"""The command `toolbus`, also as `python -m toolbus`.

It handles Ctrl-C before it imports anything else, so that an interrupt ends the process without a
traceback even while the command line is still being imported.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

__all__ = ["main"]

_CANCELLED = 5
"""`ExitCode.CANCELLED`, whose module is not imported yet."""


def main() -> None:
    """Run the command line of this process."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, _exit_quietly)
    from toolbus.cli.app import main as run

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _exit_quietly(_number: int, _frame: FrameType | None) -> None:
    # An exception raised during an import may turn into another one, with a traceback.
    os.write(2, b"toolbus: cancelled with Ctrl-C\n")
    os._exit(_CANCELLED)


if __name__ == "__main__":
    main()
