"""Signals that stop a program reach its main thread, and not a thread that only waits."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from support.rooms.events import until
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.hosting.loop_watchdog import watched_loop

_TASKS = Path("/proc/self/task")
pytestmark = pytest.mark.skipif(not _TASKS.exists(), reason="only Linux shows this")


def blocks_signals(thread: threading.Thread) -> bool:
    status = (_TASKS / str(thread.native_id) / "status").read_text()
    mask = int(status.split("SigBlk:")[1].split()[0], 16)
    return all(mask & 1 << number - 1 for number in (signal.SIGTERM, signal.SIGINT))


async def test_waiting_threads_block_signals_and_work_on_them_does_not() -> None:
    before = threading.enumerate()
    workers = WorkerThreads("signals", 1)
    assert not blocks_signals(threading.current_thread())
    assert not await workers.run(lambda: blocks_signals(threading.current_thread()))
    with watched_loop():
        found = [each for each in threading.enumerate() if each not in before]
        assert {each.name for each in found} == {"toolbus-signals", "toolbus-watchdog"}
        await until(lambda: all(map(blocks_signals, found)))
