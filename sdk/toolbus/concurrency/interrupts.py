"""Whether a KeyboardInterrupt comes from Ctrl-C, or from code that raises it."""

from __future__ import annotations

import signal
import threading
from functools import partial

__all__ = ["is_ctrl_c"]


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether an exception may be what the handler of SIGINT raised.

    Python's own handler raises in the code of the main thread, so there any KeyboardInterrupt
    counts. One that is written in Python, such as that of `asyncio.Runner`, has a frame. Hosts that
    are run by toolbus have a handler that raises nothing.
    """
    if not isinstance(error, KeyboardInterrupt):
        return False
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        return threading.current_thread() is threading.main_thread()
    while isinstance(handler, partial):
        handler = handler.func
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_code is getattr(handler, "__code__", None)
