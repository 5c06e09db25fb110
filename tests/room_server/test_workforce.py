"""Workers that do not stay: how often they are started again, and when nobody tries any more."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from support.command_line import heard_interrupts

PATIENCE_S = 30

# The parent as `toolbus serve --workers` is it; what its workers do is the test's.
PARENT = """
import logging, os, signal, socket, sys, time
from pathlib import Path
from toolbus.keys import Key, KeyRing
from toolbus_server.key_watch import KeyFiles
from toolbus_server.listeners import Listeners
from toolbus_server.settings import ServerSettings
from toolbus_server.worker_line import packed
from toolbus_server import workforce

logging.basicConfig(format="%(message)s")
folder = Path(sys.argv[1])

def attempts(post):
    \"\"\"Count how often there was a worker in this place, this one among them.\"\"\"
    file = folder / str(post.number)
    with file.open("a") as written:
        written.write("x")
    return file.stat().st_size

def serve(post):
    \"\"\"Be ready, and serve until the parent says anything.\"\"\"
    post.line.sendall(packed({"ready": True}))
    post.line.recv(1)
    return 0

exec(sys.argv[2])

keys = KeyRing([Key.generate(kid="test", iss="acme")])
keys.save(folder / "keys.toml")
workforce.Workforce(
    settings=ServerSettings(keys=keys, node="lab", drain_s=0.3),
    listeners=Listeners("127.0.0.1", 0),
    count=2,
    key_files=KeyFiles([folder / "keys.toml"], keys),
    on_ready=lambda: os.write(1, b"ready\\n"),
    work=work,
).run()
"""


@contextmanager
def parent(
    folder: Path, work: str, *, start_new_session: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Run one whose workers do this; at the end none of them is left."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder), work],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=start_new_session,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                workers = psutil.Process(process.pid).children()
                process.kill()
                for each in workers:
                    with suppress(psutil.NoSuchProcess):
                        each.kill()


def attempts(folder: Path, number: int) -> int:
    """Say how many workers there have been in one place."""
    return (folder / str(number)).stat().st_size


def test_workers_that_never_serve_are_given_up_with_a_clear_word(tmp_path: Path) -> None:
    with parent(tmp_path, "def work(post):\n    attempts(post)\n    return 3") as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1  # an error that the command turns into words
    assert out == ""
    assert err.splitlines()[-1].endswith("NoWorkers: none of 2 workers can be started")
    assert "worker lab-1, pid " in err
    assert "ended with exit code 3: the next one is started in " in err
    assert attempts(tmp_path, 1) + attempts(tmp_path, 2) in {3, 4}


def test_a_worker_that_meets_a_bug_says_so(tmp_path: Path) -> None:
    with parent(tmp_path, "def work(post):\n    raise KeyError('a bug')") as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert "worker lab-1 met a bug" in err
    assert "KeyError: 'a bug'" in err


FAILS_AT_FIRST = """
def work(post):
    if post.number == 2 and attempts(post) < 4:
        return 3
    return serve(post)
"""


def test_one_that_fails_is_tried_again_with_pauses_while_others_serve(tmp_path: Path) -> None:
    """More often than would do for all to be given up."""
    with parent(tmp_path, FAILS_AT_FIRST) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        pauses = [process.stderr.readline().rsplit(" started in ")[-1] for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert pauses == ["0.2 s\n", "0.5 s\n", "1.0 s\n"]
    assert process.returncode == 0


STUCK = """
import atexit
workforce._SPARE_S = 0.1
looks = []
atexit.register(lambda: print(len(looks)))
wait = workforce.Workforce._wait
workforce.Workforce._wait = lambda self: looks.append(wait(self))

def work(post):
    post.line.sendall(packed({"ready": True}))
    time.sleep(600)
"""


def test_a_worker_that_stands_still_is_killed_when_its_time_is_over(tmp_path: Path) -> None:
    """And until then its parent waits, instead of looking all the time."""
    with parent(tmp_path, STUCK) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert "workers that do not end are killed" in err
    assert process.returncode == 0
    assert int(out) < 50


READS_NOTHING = """
workforce.LOOK_EVERY_S, workforce._STANDS_STILL_S = 0.05, 0.3
long_key = KeyRing([Key(kid="long", alg="HS256", iss="acme", secret="s" * 60_000)])
KeyFiles.look = lambda self, is_asked: long_key
workforce.say_trusted = lambda keys: None

def work(post):
    if post.number == 2 and attempts(post) == 1:
        post.line.sendall(packed({"ready": True}))
        time.sleep(600)
    post.line.sendall(packed({"ready": True}))
    while post.line.recv(65536):
        pass
"""


def test_a_worker_that_does_not_hear_of_keys_does_not_go_on_with_old_ones(tmp_path: Path) -> None:
    with parent(tmp_path, READS_NOTHING) as process:
        assert process.stderr is not None
        assert "worker lab-2 stands still: it is killed" in process.stderr.readline()
        assert "ended by SIGKILL" in process.stderr.readline()


READS_SLOWLY = """
long_key = KeyRing([Key(kid="long", alg="HS256", iss="acme", secret="s" * 1_000_000)])
KeyFiles.look = lambda self, is_asked: long_key
workforce.say_trusted = lambda keys: None

def work(post):
    post.line.sendall(packed({"ready": True}))
    line = b""
    while not line.endswith(b"\\n"):
        line += post.line.recv(8192)
    os.write(1, b"took all\\n")
    while post.line.recv(65536):
        pass
    return 0
"""


def test_a_worker_that_reads_slowly_gets_all_that_it_is_told(tmp_path: Path) -> None:
    """More than fits into a socket; what has no room goes when there is some."""
    with parent(tmp_path, READS_SLOWLY) as process:
        assert process.stdout is not None
        said = sorted(process.stdout.readline() for _ in range(3))
        process.kill()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert said == ["ready\n", "took all\n", "took all\n"]
    assert err == ""


REFUSED = """
def work(post):
    if post.number == 2:
        post.line.sendall(packed({"refused": "another server is called lab-2"}))
        return 3
    return serve(post)
"""


def test_a_name_that_another_server_has_ends_all_at_the_start(tmp_path: Path) -> None:
    with parent(tmp_path, REFUSED) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (1, "")  # an error that the command turns into words
    assert err.splitlines()[-1].endswith("NameTaken: another server is called lab-2")
    assert "is started in" not in err
    assert "exit code" not in err


REFUSED_LATER = """
def work(post):
    if post.number == 2 and attempts(post) > 1:
        post.line.sendall(packed({"refused": "another server is called lab-2"}))
        return 3
    if post.number == 2:
        post.line.sendall(packed({"ready": True}))
        sys.stdin.read(1)
        return 1
    return serve(post)
"""


def test_a_name_that_another_server_took_meanwhile_leaves_the_others_serving(
    tmp_path: Path,
) -> None:
    with parent(tmp_path, REFUSED_LATER) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("x")
        process.stdin.flush()
        lines = [process.stderr.readline() for _ in range(5)]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    refused = "worker lab-2 cannot be started: another server is called lab-2\n"
    assert [refused == line for line in lines] == [False, True, False, True, False]
    assert process.returncode == 0


LEAVES_BY_ITSELF = """
def work(post):
    if post.number == 1:
        post.listener.close()
        post.line.sendall(packed({"ready": True}) + packed({"leaving": True}))
        post.line.recv(1)
        return 0
    os.write(1, b"%d\\n" % post.listener.getsockname()[1])
    post.line.sendall(packed({"ready": True}))
    while True:
        person, _ = post.listener.accept()
        person.sendall(b"hello")
        person.close()
"""


def test_while_a_worker_leaves_by_itself_all_connections_go_to_the_others(tmp_path: Path) -> None:
    with parent(tmp_path, LEAVES_BY_ITSELF) as process:
        assert process.stdout is not None
        port, ready = sorted(process.stdout.readline() for _ in range(2))
        assert ready == "ready\n"
        for _ in range(40):
            with socket.create_connection(("127.0.0.1", int(port)), PATIENCE_S) as person:
                assert person.recv(5) == b"hello"


TELLS_AND_STAYS = """
def work(post):
    os.write(1, b"%d\\n" % post.listener.getsockname()[1])
    post.line.sendall(packed({"ready": True}))
    post.line.recv(1)
    post.listener.close()
    os.write(1, b"told\\n")
    time.sleep(600)
"""


def test_nobody_is_let_in_once_all_workers_are_told_to_stop(tmp_path: Path) -> None:
    with parent(tmp_path, TELLS_AND_STAYS) as process:
        assert process.stdout is not None
        *ports, ready = sorted(process.stdout.readline() for _ in range(3))
        port = int(ports[0])
        assert (ports, ready) == ([f"{port}\n"] * 2, "ready\n")
        socket.create_connection(("127.0.0.1", port)).close()
        process.send_signal(signal.SIGTERM)
        assert [process.stdout.readline() for _ in range(2)] == ["told\n"] * 2
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_ctrl_c_of_a_terminal_which_all_processes_get_has_them_leave(tmp_path: Path) -> None:
    serves = "def work(post):\n    return serve(post)"
    with heard_interrupts(), parent(tmp_path, serves, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_all_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with heard_interrupts(), parent(tmp_path, TELLS_AND_STAYS) as process:
        assert process.stdout is not None
        assert "ready\n" in [process.stdout.readline() for _ in range(3)]
        process.send_signal(number)
        assert [process.stdout.readline() for _ in range(2)] == ["told\n"] * 2
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)  # until the workers have closed its stdout too
    assert process.returncode == -number
