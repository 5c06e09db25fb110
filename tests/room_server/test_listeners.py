"""One address for several processes: the sockets, without the processes."""

from __future__ import annotations

import errno
import socket
import sys

import pytest

from toolbus_server.listeners import Listeners

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux deals connections out")
COUNT = 200
IN_USE = f"Errno {errno.EADDRINUSE}"


def accepted(listener: socket.socket) -> int:
    """Take all connections that wait; say how many there were."""
    listener.setblocking(False)
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


@ON_LINUX
def test_connections_are_dealt_out_to_all_alike() -> None:
    listeners = Listeners("127.0.0.1", 0)
    ours = [listeners.open(number) for number in (1, 2)]
    counts = [0, 0]
    for _ in range(COUNT // 50):
        people = [socket.create_connection(("127.0.0.1", listeners.port)) for _ in range(50)]
        counts = [count + accepted(each) for count, each in zip(counts, ours, strict=True)]
        for person in people:
            person.close()
    listeners.close_all_but(None)
    assert sum(counts) == COUNT
    assert min(counts) > COUNT / 4  # by chance once in 10 ** 12


@ON_LINUX
def test_what_waits_for_a_process_that_died_is_there_for_the_next() -> None:
    listeners = Listeners("127.0.0.1", 0)
    process_has = listeners.open(1).dup()
    with socket.create_connection(("127.0.0.1", listeners.port)) as person:
        process_has.close()
        taken, _ = listeners.open(1).accept()
        taken.sendall(b"hello")
        assert person.recv(5) == b"hello"
        taken.close()
    listeners.close_all_but(None)


@ON_LINUX
def test_a_process_that_is_out_gets_no_connection_until_it_is_in_again() -> None:
    listeners = Listeners("127.0.0.1", 0)
    first, second = (listeners.open(number) for number in (1, 2))
    listeners.close(2)
    people = [socket.create_connection(("127.0.0.1", listeners.port)) for _ in range(20)]
    assert accepted(first) == 20
    second = listeners.open(2)
    people += [socket.create_connection(("127.0.0.1", listeners.port)) for _ in range(60)]
    assert accepted(second) > 0
    listeners.close_all_but(None)
    for person in people:
        person.close()


@pytest.mark.parametrize("spread", [pytest.param(True, marks=ON_LINUX), False])
def test_a_port_on_which_somebody_listens_cannot_be_had(spread: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match=IN_USE):
            Listeners("127.0.0.1", taken.getsockname()[1], spread=spread)


@pytest.mark.parametrize("spread", [pytest.param(True, marks=ON_LINUX), False])
def test_a_port_that_is_taken_is_nobody_elses(spread: bool) -> None:
    listeners = Listeners("127.0.0.1", 0, spread=spread)
    listeners.open(1)
    with pytest.raises(OSError, match=IN_USE):
        Listeners("127.0.0.1", listeners.port, spread=spread)
    listeners.close_all_but(None)
    Listeners("127.0.0.1", listeners.port, spread=spread).close_all_but(None)


@ON_LINUX
def test_a_port_is_nobody_elses_also_while_no_process_listens() -> None:
    listeners = Listeners("127.0.0.1", 0)
    for _ in range(2):
        with pytest.raises(OSError, match=IN_USE):
            socket.create_server(("127.0.0.1", listeners.port))
        listeners.open(1)
        listeners.close(1)
    listeners.close_all_but(None)


def test_where_nothing_is_dealt_out_all_wait_at_one_socket() -> None:
    listeners = Listeners("127.0.0.1", 0, spread=False)
    assert listeners.open(1) is listeners.open(2)
    listeners.close(1)  # of one process; the others wait there still
    listeners.close_all_but(2)
    with socket.create_connection(("127.0.0.1", listeners.port)):
        assert accepted(listeners.open(2)) == 1
    listeners.close_all_but(None)


def test_one_process_keeps_what_is_its_own() -> None:
    listeners = Listeners("127.0.0.1", 0)
    kept, other = listeners.open(1), listeners.open(2)
    listeners.close_all_but(1)
    assert kept.fileno() != -1
    assert (other.fileno() == -1) == (other is not kept)
    kept.close()


def test_a_name_of_several_addresses_is_refused_with_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(OSError, match=r"several addresses \(::1, 127\.0\.0\.1\)"):
        Listeners("both", 0)
