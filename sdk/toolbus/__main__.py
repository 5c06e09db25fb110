"""The command `toolbus`, also as `python -m toolbus`.

Before it imports anything else, it opens standard streams that are closed, and handles Ctrl-C: an
interrupt ends the process without a traceback even while the command line or a command is still
being imported.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

__all__ = ["main"]

_CANCELLED = 5
"""`ExitCode.CANCELLED`, whose module is not imported yet."""


def main() -> None:
    """Run the command line of this process."""
    _open_missing_streams()
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, _exit_quietly)
    from toolbus.cli.app import main as run

    run(_raise_interrupts if is_default else None)


def _open_missing_streams() -> None:
    """Open the null device as each of stdin, stdout and stderr that is closed.

    Else the next file or socket has its number, and output goes there; uvloop ends the process.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it has the lowest number
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)


def _raise_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit_quietly(_number: int, _frame: FrameType | None) -> None:
    # An exception raised during an import may turn into another one, with a traceback.
    os.write(2, b"toolbus: cancelled with Ctrl-C\n")
    os._exit(_CANCELLED)


if __name__ == "__main__":
    main()
