"""What a forked child of this process has of ours: locks that it can take, and no thread."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from support.parts.name_server import NAME, name_server
from toolbus.concurrency import event_loop
from toolbus.forked_children import end_child
from toolbus.records.call_record import CallFilter
from toolbus.records.sqlite_file import SqliteStore
from toolbus.transport.name_lookup import HostResolver


def status_of_child(work: Callable[[], object]) -> int:
    """Return how a child ends that is forked now and does this; an exception is 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn where threads run
        pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_does_not_wait_for_a_lock_of_a_thread_that_it_has_not(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "calls.db", 60.0)
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with store._changed:
            is_held.set()
            may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    try:
        assert status_of_child(store.close) == 0
    finally:
        may_end.set()
        thread.join()
    store.close()
    assert store.select(CallFilter(), 10) == []


def test_a_child_looks_a_name_up_that_its_parent_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with name_server(monkeypatch) as names:
        names.may_answer.clear()
        resolver = HostResolver(0.1)

        async def look_up() -> None:
            await resolver.addresses(NAME, 7)

        with pytest.raises(OSError, match="takes longer"):
            event_loop.run(look_up())

        def in_child() -> None:
            names.may_answer = threading.Event()
            names.may_answer.set()
            event_loop.run(look_up())

        assert status_of_child(in_child) == 0


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SystemExit(), 0),
        (SystemExit(3), 3),
        (SystemExit("text"), 1),
        (SystemExit(-1), 255),
        (ValueError("x"), 1),
    ],
)
def test_a_child_ends_as_a_program_does(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atexit._run_exitfuncs", lambda: None)  # those of the test run
    assert status_of_child(lambda: end_child(error)) == status
