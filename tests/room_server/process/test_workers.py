"""The supervisor of workers: restarts with backoff, refusals, and signals, with fake workers."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from support.processes.command_line import heard_interrupts
from toolbus_server.process.workers import reserve_port

TIMEOUT_S = 30

# The supervisor of `toolbus serve --workers 2`; what its workers do is given by the test.
SUPERVISOR = """
import asyncio, logging, os, sys
from pathlib import Path
from toolbus_server.process import workers
from toolbus_server.process.serve import ServeOptions

folder, worker, stop_margin_s = sys.argv[1:]
logging.basicConfig(format="%(message)s")
workers._STOP_MARGIN_S, workers.SILENCE_S = float(stop_margin_s), 0.5
options = ServeOptions(
    dev=False, host="127.0.0.1", port=0, keys=Path("keys.toml"), allow_query_token=False,
    drain_s=0.3, tls_cert=None, tls_key=None, trusted_origins=[], max_per_address=0,
    max_per_identity=0, max_per_room=0, max_waiting_mib=0, trusted_proxies=[], redis=None,
    node="lab", workers=2, metrics="on",
)
command = (sys.executable, "-c", worker, folder)
supervisor = workers.Supervisor(options, lambda: os.write(1, b"ready\\n"), command)
asyncio.run(supervisor.run())
"""

WORKER = """
import os, pickle, signal, sys, time
from pathlib import Path

options, *_ = pickle.load(sys.stdin.buffer)
name = options.node
file = Path(sys.argv[1], name)
with file.open("a") as starts:
    starts.write("x")
starts = file.stat().st_size

def serve():
    os.write(1, b"listening\\n")
    sys.stdin.buffer.read()

"""


@contextmanager
def supervisor(
    folder: Path,
    worker: str,
    *,
    start_new_session: bool = False,
    stop_margin_s: float = TIMEOUT_S,
) -> Iterator[subprocess.Popen[str]]:
    """Run a supervisor of two workers that run this code; at the end no process is left."""
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(folder), WORKER + worker, str(stop_margin_s)],
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


def until_ready(process: subprocess.Popen[str]) -> None:
    """Wait until all workers listen."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def starts(folder: Path, name: str) -> int:
    """Return how often a worker was started."""
    return (folder / name).stat().st_size


def test_supervisor_gives_up_when_no_worker_ever_listens(tmp_path: Path) -> None:
    with supervisor(tmp_path, "sys.exit(3)") as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (1, "")  # an error, which the command reports
    assert err.splitlines()[-1].endswith("NoWorkers: none of 2 workers can be started")
    assert "worker lab-1, pid " in err
    assert "ended with exit code 3: restart in " in err
    assert starts(tmp_path, "lab-1") + starts(tmp_path, "lab-2") in {3, 4}


FAILS_AT_FIRST = """
if name == "lab-2" and starts < 5:
    sys.exit(3)
serve()
"""


def test_worker_that_fails_is_restarted_with_growing_pauses_while_another_listens(
    tmp_path: Path,
) -> None:
    """More often than would make the supervisor give up; it is ready once all listen."""
    with supervisor(tmp_path, FAILS_AT_FIRST) as process:
        assert process.stderr is not None
        pauses = [process.stderr.readline().rsplit(" restart in ")[-1] for _ in range(4)]
        until_ready(process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert pauses == ["0.2 s\n", "0.5 s\n", "1.0 s\n", "2.0 s\n"]
    assert (process.returncode, out, err) == (0, "", "")


HANGS_AT_FIRST = """
if name == "lab-2" and starts == 1:
    os.write(1, b"listening\\n\\n")
    os.kill(os.getpid(), signal.SIGSTOP)
serve()
"""


def test_worker_that_hangs_is_killed_and_replaced(tmp_path: Path) -> None:
    with supervisor(tmp_path, HANGS_AT_FIRST) as process:
        assert process.stderr is not None
        until_ready(process)
        line = process.stderr.readline()
        assert "ended by SIGKILL, as it did not respond: restart in " in line
        while starts(tmp_path, "lab-2") < 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
    assert (starts(tmp_path, "lab-1"), starts(tmp_path, "lab-2")) == (1, 2)
    assert process.returncode == 0


def test_worker_that_does_not_stop_in_time_is_killed(tmp_path: Path) -> None:
    stuck = 'os.write(1, b"listening\\n"); time.sleep(600)'
    with supervisor(tmp_path, stuck, stop_margin_s=0.1) as process:
        until_ready(process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert err.count("ended by SIGKILL\n") == 2
    assert process.returncode == 0


REFUSED = """
if name == "lab-2":
    os.write(1, b"another live server has the node name lab-2")
    sys.exit(3)
serve()
"""


def test_node_name_in_use_stops_all_workers_at_the_start(tmp_path: Path) -> None:
    with supervisor(tmp_path, REFUSED) as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (1, "")  # an error, which the command reports
    assert err.splitlines()[-1].endswith("NameTaken: another live server has the node name lab-2")
    assert "restart" not in err
    assert "exit code" not in err


REFUSED_LATER = """
if name == "lab-2" and starts > 1:
    os.write(1, b"another live server has the node name lab-2")
    sys.exit(3)
if name == "lab-2":
    os.write(1, b"listening\\n")
    while not Path(sys.argv[1], "end").exists():
        time.sleep(0.01)
    sys.exit(1)
serve()
"""


def test_node_name_taken_later_leaves_the_other_workers_running(tmp_path: Path) -> None:
    with supervisor(tmp_path, REFUSED_LATER) as process:
        assert process.stderr is not None
        until_ready(process)
        (tmp_path / "end").touch()
        lines = [process.stderr.readline() for _ in range(5)]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
    refused = "worker lab-2 cannot be started: another live server has the node name lab-2\n"
    assert [refused == line for line in lines] == [False, True, False, True, False]
    assert process.returncode == 0
    assert starts(tmp_path, "lab-1") == 1


def test_ctrl_c_in_a_terminal_drains_all_workers(tmp_path: Path) -> None:
    """It is sent to the whole process group of the supervisor, which workers are not part of."""
    with (
        heard_interrupts(),
        supervisor(tmp_path, "serve()", start_new_session=True) as process,
    ):
        until_ready(process)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_all_at_once(tmp_path: Path, number: signal.Signals) -> None:
    stays = 'serve(); os.write(2, b"draining\\n"); time.sleep(600)'
    with heard_interrupts(), supervisor(tmp_path, stays) as process:
        assert process.stderr is not None
        until_ready(process)
        workers = psutil.Process(process.pid).children()
        process.send_signal(number)
        assert process.stderr.readline() == "draining\n"
        process.send_signal(number)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == -number
    assert not any(each.is_running() for each in workers)


def test_sighup_is_passed_on_to_the_workers(tmp_path: Path) -> None:
    worker = 'signal.signal(signal.SIGHUP, lambda *_: os.write(2, b"reload\\n"))\nserve()'
    with supervisor(tmp_path, worker) as process:
        assert process.stderr is not None
        until_ready(process)
        process.send_signal(signal.SIGHUP)
        assert [process.stderr.readline() for _ in range(2)] == ["reload\n"] * 2
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0


# The port


def test_port_in_use_cannot_be_reserved() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match=f"Errno {errno.EADDRINUSE}"):
            reserve_port("127.0.0.1", taken.getsockname()[1])


def test_reserved_port_is_only_for_sockets_that_share_it() -> None:
    with reserve_port("127.0.0.1", 0) as reserved:
        address = reserved.getsockname()
        for attempt in (socket.create_server, lambda own: reserve_port(*own)):
            with pytest.raises(OSError, match=f"Errno {errno.EADDRINUSE}"):
                attempt(address)
        for _ in range(2):
            with socket.create_server(address, reuse_port=True) as worker:
                with socket.create_connection(address):
                    worker.accept()[0].close()
