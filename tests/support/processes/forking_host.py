"""A host whose tools start processes by fork: `python forking_host.py LOOP`, or `toolbus host`."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from multiprocessing.context import ForkProcess

from opentelemetry import trace

from toolbus import RemoteToolkit, tool

_LONG_S = 600
_fork = multiprocessing.get_context("fork")


def _record() -> None:
    trace.get_tracer("child").start_span("in the child").end()


def _terminated(child: ForkProcess) -> int | None:
    child.start()
    child.terminate()
    child.join(_LONG_S)
    return child.exitcode


@tool
def end_child() -> int | None:
    """Start and terminate a process, from a thread."""
    return _terminated(_fork.Process(target=time.sleep, args=(_LONG_S,)))


@tool
async def end_child_of_loop() -> int | None:
    """Start and terminate a process, from the event loop."""
    return _terminated(_fork.Process(target=time.sleep, args=(_LONG_S,)))


@tool
async def record_in_child() -> int | None:
    """Record a span in a process that ends at once."""
    child = _fork.Process(target=_record)
    child.start()
    child.join(_LONG_S)
    return child.exitcode


@tool
async def exit_in_child() -> int:
    """Fork as a library may, and end the child as a program does; return its status."""
    pid = os.fork()
    if pid == 0:
        sys.exit(7)
    return os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1])


@tool
def return_in_child() -> int:
    """Fork, and return in the child, too; return the status of the child."""
    pid = os.fork()
    return 9 if pid == 0 else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@tool
async def return_in_child_of_loop() -> int:
    """Do the same on the event loop."""
    pid = os.fork()
    if pid == 0:
        return 9
    return os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1])


@tool
async def leave_child() -> int:
    """Fork a process that stays, and return its id."""
    pid = os.fork()
    if pid == 0:
        time.sleep(_LONG_S)  # noqa: ASYNC251 - there is no event loop in the child
        os._exit(0)
    return pid


@tool
async def hold() -> None:
    """Never return."""
    await asyncio.Event().wait()


kit = RemoteToolkit(
    "kit",
    [
        end_child,
        end_child_of_loop,
        record_in_child,
        exit_in_child,
        return_in_child,
        return_in_child_of_loop,
        leave_child,
        hold,
    ],
)

if __name__ == "__main__":
    if sys.argv[1] == "asyncio":
        sys.modules["uvloop"] = None  # type: ignore[assignment]
    kit.run()
