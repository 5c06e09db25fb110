"""Starts `toolbus`, so that Ctrl-C ends it quietly also while it is still being imported.

It imports nothing of toolbus before it hears Ctrl-C: a package of its own, because any module of
`toolbus` brings all of that along.
"""

from __future__ import annotations

import gc
import os
import signal
from types import FrameType

__all__ = ["main"]

_GIVEN_UP = 5
"""`toolbus.exit_codes.ExitCode.GIVEN_UP`, which cannot be imported yet."""


def main() -> None:
    """Run the command line of this process."""
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heard:
        signal.signal(signal.SIGINT, _give_up)
    gc.disable()  # until the command begins: what is loaded stays
    from toolbus.command_line import main as run

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _give_up(_number: int, _frame: FrameType | None) -> None:
    # No exception: one that comes up within an import may end as another, with a traceback.
    os.write(2, b"toolbus: given up by Ctrl-C\n")
    os._exit(_GIVEN_UP)
