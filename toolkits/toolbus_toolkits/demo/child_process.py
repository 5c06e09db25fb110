"""The command `toolbus` as a child process that ends with its parent, however that ends.

Run as `python -m toolbus_toolkits.demo.child_process COMMAND ...`, with a pipe at stdin that the
parent keeps open and does not use: the end of the pipe has the effect of SIGTERM.
"""

from __future__ import annotations

import os
import signal
import threading

from toolbus.__main__ import main

__all__ = ["COMMAND_MODULE"]

COMMAND_MODULE = "toolbus_toolkits.demo.child_process"


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    main()
