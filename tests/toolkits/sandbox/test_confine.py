"""`confine.py`: what a confined program gets, and what is refused before it is executed."""

from __future__ import annotations

import os
import platform
import signal
from pathlib import Path
from typing import Any

import pytest

from support.sandbox.landlock import READ, confined, needs_landlock, python
from support.sandbox.reach import require_python_of

ABIS = [1, 2, 3, 4, 5, 6, 7]
NOBODY = 65534
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="calls of x86-64")


@pytest.fixture(autouse=True)
def _landlock() -> None:
    needs_landlock("a program confined by Landlock")


def call(expression: str) -> str:
    """Return code that prints the name of the error of a system call, or `None`."""
    return (
        "import ctypes, errno; libc = ctypes.CDLL(None, use_errno=True); call = libc.syscall;"
        f"print(errno.errorcode.get(ctypes.get_errno()) if {expression} == -1 else None)"
    )


def test_a_program_gets_its_arguments_its_variables_and_its_input_and_gives_its_status() -> None:
    code = "import sys; print(sys.argv[1:], sys.stdin.read()); sys.exit(7)"
    ended = confined(*python(code), "a\nb", "--", "", input="words")
    assert (ended.returncode, ended.stdout) == (7, "['a\\nb', '--', ''] words\n")

    variables = {
        "PATH": os.environ["PATH"],
        "LC_CTYPE": "C",
        "PYTHONHOME": "/none",
        "B\xe9": "\xff",
    }
    assert confined("env", "-0", env=variables).stdout == "".join(
        f"{name}={value}\0" for name, value in variables.items()
    )
    assert confined("env", env={"PATH": os.environ["PATH"]}).stdout.count("\n") == 1


def test_signals_that_python_ignores_end_the_program_as_usual() -> None:
    ended = confined("grep", "SigIgn", "/proc/self/status")
    ignored = int(ended.stdout.split()[1], 16)  # maybe some of whom the tests were started by
    assert not any(ignored & 1 << (number - 1) for number in (signal.SIGPIPE, signal.SIGXFSZ))


@pytest.mark.parametrize(
    ("options", "argv", "words"),
    [
        ({"read": ["/not/there"]}, ["true"], "cannot open '/not/there': No such file"),
        ({"write": ["/not\nthere"]}, ["true"], "cannot open '/not\\nthere': No such file"),
        ({}, ["/usr/bin/not-there"], "No such file or directory"),
        ({}, ["/dev/null"], "Permission denied"),
    ],
)
def test_what_goes_wrong_before_the_program_is_one_line_and_status_125(
    options: dict[str, list[str]], argv: list[str], words: str
) -> None:
    ended = confined(*argv, options=options)
    assert ended.returncode == 125
    assert ended.stderr.startswith("confine: ")
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_path_with_a_symlink_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/usr")
    ended = confined("true", options={"write": [str(tmp_path / "link" / "bin")]})
    assert ended.returncode == 125
    assert "Too many levels of symbolic links" in ended.stderr


def test_a_kernel_without_landlock_is_refused() -> None:
    ended = confined("true", abi=0)
    assert (ended.returncode, ended.stdout) == (125, "")
    assert "the kernel has no Landlock" in ended.stderr


@pytest.mark.parametrize("abi", ABIS)
def test_unix_sockets_need_a_landlock_that_holds_abstract_ones(abi: int) -> None:
    ended = confined("true", options={"unix_sockets": True}, abi=abi)
    assert ended.returncode == (125 if abi < 6 else 0)
    assert ("needs Landlock ABI 6" in ended.stderr) == (abi < 6)


@pytest.mark.parametrize("abi", ABIS)
def test_a_folder_to_write_holds_a_whole_build(tmp_path: Path, abi: int) -> None:
    """Links, renames between folders, sockets of a pair, threads, children, signals to a group."""
    script = """
    set -e
    mkdir -p a b; echo one > a/file; mv a/file b/file; ln -s file b/link; chmod 600 b/file
    echo two >> b/file; : > b/empty; rm b/empty; cat b/link; kill -0 0
    python3 -I -c 'import threading; threading.Thread(target=print, args=("three",)).start()'
    python3 -I -c 'import socket; a, b = socket.socketpair(); a.send(b"x")'
    yes | head -1 > /dev/null
    git init -q .; git add .; git -c user.name=n -c user.email=e commit -qm four
    git log --format=%s
    """
    # A kernel of ABI 1 refuses to move a file to another folder; `mv` then copies it.
    ended = confined(
        *("sh", "-c", script),
        options={"write": [str(tmp_path)]},
        abi=abi,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    assert ended.stderr == ""
    assert ended.stdout == "one\ntwo\nthree\nfour\n"


def test_single_files_can_be_given_to_read_and_to_write(tmp_path: Path) -> None:
    for name in ("read", "write", "neither"):
        (tmp_path / name).write_text(name)
    script = "cat read; cat write; cat neither; echo more >> write; echo more >> read"
    ended = confined(
        *("sh", "-c", script),
        options={"read": [*READ, str(tmp_path / "read")], "write": [str(tmp_path / "write")]},
        cwd=tmp_path,
    )
    assert ended.stdout == "readwrite"
    assert (tmp_path / "read").read_text() == "read"
    assert (tmp_path / "write").read_text() == "writemore\n"


@pytest.mark.parametrize(
    ("network", "unix_sockets", "families", "abi"),
    [
        (False, False, [], 1),
        (False, False, [], 7),
        (True, False, [AF_INET, AF_INET6, AF_NETLINK], 1),
        (True, False, [AF_INET, AF_INET6, AF_NETLINK], 7),
        (False, True, [AF_UNIX], 7),
        (True, True, [AF_UNIX, AF_INET, AF_INET6, AF_NETLINK], 7),
    ],
)
def test_no_other_family_of_sockets_can_be_made(
    network: bool, unix_sockets: bool, families: list[int], abi: int
) -> None:
    code = """
import errno, socket
for family in range(64):
    for kind in 1, 2, 3, 5:
        try:
            socket.socket(family, kind)
        except OSError as error:
            if error.errno != errno.EACCES:
                print(family)
        else:
            print(family)
"""
    ended = confined(
        *python(code), options={"network": network, "unix_sockets": unix_sockets}, abi=abi
    )
    assert sorted(set(map(int, ended.stdout.split()))) == families


@pytest.mark.parametrize("kind", ["STREAM", "SEQPACKET", "DGRAM", "RAW"])
def test_a_pair_of_sockets_that_can_send_elsewhere_is_refused(kind: str) -> None:
    code = f"import socket; socket.socketpair(type=socket.SOCK_{kind} | socket.SOCK_CLOEXEC)"
    assert (confined(*python(code)).returncode == 0) == (kind in ("STREAM", "SEQPACKET"))
    assert confined(*python(code), options={"unix_sockets": True}).returncode == 0


@x86_64
@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("call(435, None, 0)", "ENOSYS"),  # clone3
        ("call(425, 1, None)", "ENOSYS"),  # io_uring_setup
        *((f"call(56, {1 << bit} | 17, 0, 0, 0, 0)", "EPERM") for bit in (17, *range(25, 31))),
        *((f"call(272, {1 << bit})", "EPERM") for bit in (7, 17, *range(25, 31))),  # unshare
        ("call(272, 0x400)", "None"),  # unshare of its own descriptors
        ("call(101, 0, 0, 0, 0)", "EPERM"),  # ptrace
        ("call(250, 0, -3, 0)", "EPERM"),  # keyctl
        ("call(321, 0, None, 0)", "EPERM"),  # bpf
        ("call(298, None, 0, 0, 0, 0)", "EPERM"),  # perf_event_open
        ("call(323, 1)", "EPERM"),  # userfaultfd
        ("call(302, 0, 7, None, None)", "None"),  # prlimit64 of itself
        ("call(302, 1, 7, None, None)", "EPERM"),
        ("call(302, 0, 15, None, None)", "EPERM"),  # the mark of the launcher
        ("call(160, 15, None)", "EPERM"),
        ("call(141, 2, 0, 19)", "EPERM"),  # setpriority of a user
    ],
)
def test_calls_that_reach_out_are_refused(expression: str, error: str) -> None:
    assert confined(*python(call(expression))).stdout == f"{error}\n"


@x86_64
@pytest.mark.parametrize(
    ("call", "is_refused"),
    [
        ("os.kill(os.getpid(), 0)", True),
        ("os.killpg(0, 0)", False),
        ("signal.raise_signal(15)", True),
        ("fcntl.fcntl(0, fcntl.F_SETOWN, 1)", True),
        ("fcntl.fcntl(0, fcntl.F_GETFL)", False),
        ("os.truncate('file', 0)", True),
        ("os.open('file', os.O_RDONLY | os.O_TRUNC)", True),
        ("os.open('file', os.O_ACCMODE | os.O_TRUNC)", True),
        ("os.open('file', os.O_WRONLY | os.O_TRUNC)", False),
    ],
)
def test_what_an_old_landlock_lacks_is_filtered(
    tmp_path: Path, call: str, is_refused: bool
) -> None:
    (tmp_path / "file").touch()
    code = f"import fcntl, os, signal; signal.signal(15, signal.SIG_IGN); {call}"
    for abi, fails in ((2, is_refused), (7, False)):
        ended = confined(*python(code), options={"write": [str(tmp_path)]}, abi=abi, cwd=tmp_path)
        assert (ended.returncode != 0) == fails, ended.stderr


@x86_64
def test_calls_by_the_numbers_of_x32_end_the_program() -> None:
    code = "import ctypes; ctypes.CDLL(None).syscall(0x40000000 | 39)"
    assert confined(*python(code)).returncode == -signal.SIGSYS


@x86_64
def test_calls_of_32_bit_end_the_program() -> None:
    code = r"""
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # getpid by int 0x80
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
    assert confined(*python(code)).returncode in (-signal.SIGSYS, -signal.SIGSEGV)


def test_no_capability_is_left() -> None:
    code = "print([line.split()[1] for line in open('/proc/self/status') if line[:3] == 'Cap'])"
    for line in ("sh -c", "exec"):
        argv = python(code) if line == "exec" else ["sh", "-c", '"$@"', "sh", *python(code)]
        sets = eval(confined(*argv).stdout)
        # The bounding set of a user without capabilities stays, and is of no use to it.
        used = sets if os.getuid() == 0 else [*sets[:3], sets[4]]
        assert set(used) == {"0" * 16}


@pytest.mark.skipif(os.geteuid() != 0, reason="of root")
def test_a_limit_of_processes_is_refused_to_root() -> None:
    refused = confined("true", options={"max_processes": 9})
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "max_processes: the kernel limits no processes of root" in refused.stderr


def test_processes_and_threads_are_limited_beside_those_that_run_already() -> None:
    code = """
import os, signal
children = 0
try:
    while children < 40:
        if os.fork() == 0:
            signal.pause()
        children += 1
except BlockingIOError:
    pass
print(children, flush=True)
os.killpg(0, 9)
"""
    if os.geteuid() == 0:
        require_python_of(61_234, "limits of processes of another user")
    # A user of its own: other tests start and end processes of `nobody` meanwhile.
    nobody: dict[str, Any] = {"user": 61_234, "group": NOBODY, "extra_groups": []}
    ended = confined(
        *python(code),
        options={"max_processes": 9},
        start_new_session=True,
        cwd="/",
        **(nobody if os.geteuid() == 0 else {}),
    )
    # Others of its user may end meanwhile.
    assert 8 <= int(ended.stdout) < 40, ended.stderr
