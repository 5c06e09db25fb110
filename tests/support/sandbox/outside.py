"""What lies outside of a sandbox for each attempt to leave it, and what has become of it."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import secrets
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from support.sandbox.escapes import ESCAPES, PRELUDE, SETTINGS, Escape
from support.sandbox.reach import require_python_of

__all__ = ["Outside", "outside"]

_TIME_S = 60
_IPC_CREAT, _IPC_RMID, _IPC_NOWAIT = 0o1000, 0, 0o4000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.shmat.restype = ctypes.c_void_p

# Makes the attempts one after the other in the sandbox, each in a child of its own.
_RUNNER = """
import ctypes, json, os, resource, socket, subprocess, sys, traceback
outputs = {}
for name, code, env in json.load(sys.stdin):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.closerange(3, 64)
        os.environ.update(env)
        try:
            exec(code, {})
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    with open(reading, errors="replace") as output:
        outputs[name] = output.read()
json.dump(outputs, sys.stdout)
"""
# A process outside with a secret: in its variables, its arguments, its memory, an open file, a key.
# It lets itself be traced, which a system may deny to all but parents.
_OTHER = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
secret = sys.argv[1].encode()
buffer = ctypes.create_string_buffer(secret, 80)
libc.prctl(0x59616d61, ctypes.c_ulong(-1 & 0xffffffffffffffff), 0, 0, 0)
add, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
if sys.argv[2]:
    key = libc.syscall(add, b"user", secret[::-1], secret, len(secret), -4)
    libc.syscall(keyctl, 5, key, 0x3f3f0000, 0, 0)
    libc.syscall(keyctl, 15, key, 600, 0, 0)  # then it expires
opened = os.open("secret", os.O_RDONLY)
print(ctypes.addressof(buffer), opened, flush=True)
signal.pause()
"""


class _Other:
    """A process outside, and what it was at its start."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.address, self.opened = process.stdout.readline().split()
        self._before = self._state()

    def _state(self) -> Sequence[object]:
        pid = self.process.pid
        if self.process.poll() is not None:
            return ["ended", self.process.returncode]
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        try:
            content = os.pread(memory, 80, int(self.address))
        finally:
            os.close(memory)
        limits = Path(f"/proc/{pid}/limits").read_text()
        return [content, limits, os.getpriority(os.PRIO_PROCESS, pid)]

    def change(self) -> str:
        state = self._state()
        return "" if state == self._before else f"{self._before} became {state}"


class Outside:
    """Folders, processes and sockets outside, for each attempt its own; all of one user.

    Args:
        base: A folder that the user can read and change.
        user: The id of the user that attempts.
    """

    def __init__(self, base: Path, user: int, stack: ExitStack) -> None:
        self.base = base
        self._user = user
        self._token = secrets.token_hex(8)
        self._sizes: dict[str, int] = {}
        self._others: dict[str, _Other] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._received: set[str] = set()
        self.outputs: dict[str, str] = {}
        """What the attempts wrote, each to its stdout and stderr."""
        (base / "home").mkdir()
        self._make_sockets(stack)
        self._make_ipc(stack)
        for escape in ESCAPES:
            self._make_folders(escape)
            if escape.has_other:
                self._start_other(escape.name, stack)
        for path in base.rglob("*"):
            if os.geteuid() == 0:
                os.chown(path, user, user, follow_symlinks=False)
        self._before = {escape.name: self._facts(escape.name) for escape in ESCAPES}

    @property
    def roots(self) -> list[str]:
        """The folders that attempts may change."""
        return [str(self.base / "roots" / escape.name) for escape in ESCAPES]

    @property
    def readable(self) -> Path:
        """The folder that attempts may read, but for what is hidden in it."""
        return self.base / "readable"

    @property
    def hidden(self) -> list[str]:
        """What is hidden in the folder that attempts may read."""
        return [str(self.readable / escape.name / "hidden") for escape in ESCAPES]

    def secret(self, name: str) -> str:
        """Return the word that is not to be read."""
        return f"secret-{self._token}-{name.replace(' ', '-').replace('/', '-')}"

    def _make_folders(self, escape: Escape) -> None:
        name, secret = escape.name, self.secret(escape.name)
        out, root = self.base / "outside" / name, self.base / "roots" / name
        seen = self.readable / name
        for folder in (out / "list", out / "empty", root, seen):
            folder.mkdir(parents=True)
        (seen / "file").write_text("unchanged")
        (seen / "hidden").write_text(secret)
        (out / "secret").write_text(secret)
        (out / "file").write_text("unchanged")
        (out / "list" / secret).touch()
        (out / "program").write_text(f"#!/bin/sh\necho {secret}\n")
        (out / "program").chmod(0o755)
        self._sizes[name] = 10**9 + secrets.randbelow(10**9)
        with (out / "sized").open("wb") as sized:
            sized.truncate(self._sizes[name])
        if escape.row in ("protect", "new settings"):
            for path in SETTINGS:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text("unchanged")
            (root / ".env").write_text(secret)

    def _start_other(self, name: str, stack: ExitStack) -> None:
        secret = self.secret(name)
        folder = self.base / "outside" / name
        for path in (folder, folder / "secret"):
            if os.geteuid() == 0:
                os.chown(path, self._user, self._user)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _OTHER, secret, "key" if "key" in name else ""],
            stdout=subprocess.PIPE,
            text=True,
            env={"VARIABLE": secret},
            cwd=folder,
            start_new_session=True,
            **self._as_user(),
        )
        stack.enter_context(process)
        stack.callback(process.kill)
        self._others[name] = _Other(process)

    def _as_user(self) -> dict[str, Any]:
        """Return the arguments of `Popen` that start a program as the user."""
        if self._user == os.geteuid():
            return {}
        return {"user": self._user, "group": self._user, "extra_groups": []}

    def _make_sockets(self, stack: ExitStack) -> None:
        folder = self.base / "sockets"
        folder.mkdir()
        addresses: dict[str, tuple[int, int, Any]] = {
            "TCP": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "UDP": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "STREAM": (socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "stream")),
            "DATAGRAM": (socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "datagram")),
            "ABSTRACT": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self._token}"),
            "ABSTRACT-D": (socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{self._token}d"),
            "TCP6": (socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            "NETLINK": (socket.AF_NETLINK, socket.SOCK_RAW, (0, 0)),
        }
        for key, (family, kind, address) in addresses.items():
            protocol = 2 if key == "NETLINK" else 0  # NETLINK_USERSOCK, for programs
            sock = stack.enter_context(socket.socket(family, kind, protocol))
            sock.bind(address)
            sock.setblocking(False)
            if kind == socket.SOCK_STREAM:
                sock.listen(64)
            self._sockets[key] = sock

    def _make_ipc(self, stack: ExitStack) -> None:
        self._memory = _libc.shmget(0, 4096, _IPC_CREAT | 0o666)
        stack.callback(_libc.shmctl, self._memory, _IPC_RMID, None)
        self._queue = _libc.msgget(0, _IPC_CREAT | 0o666)
        stack.callback(_libc.msgctl, self._queue, _IPC_RMID, None)
        at = _libc.shmat(self._memory, None, 0)
        ctypes.memmove(at, self.secret("reads shared memory").encode() + b"\0", 80)

    def _variables(self, name: str) -> Mapping[str, str]:
        other = self._others.get(name)
        ports = {
            key: str(self._sockets[key].getsockname()[at])
            for key, at in (("TCP", 1), ("UDP", 1), ("TCP6", 1), ("NETLINK", 0))
        }
        return {
            "NAME": name,
            "OUT": str(self.base / "outside" / name),
            "ROOT": str(self.base / "roots" / name),
            "KEY": self.secret(name)[::-1],  # its name; not to be seen in what is printed of it
            "SEEN": str(self.readable / name),
            "OTHER": str(other.process.pid if other else 0),
            "ADDRESS": other.address if other else "0",
            "OPENED": other.opened if other else "",
            "MEMORY": str(self._memory),
            "QUEUE": str(self._queue),
            "STREAM": str(self.base / "sockets/stream"),
            "DATAGRAM": str(self.base / "sockets/datagram"),
            "ABSTRACT": self._token,
            **ports,
        }

    def run(
        self, words: Sequence[str], code: str, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run Python as the user, behind the words of a sandbox."""
        return subprocess.run(
            [*words, sys.executable, "-I", "-S", "-c", code],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_TIME_S,
            env={"PATH": os.environ["PATH"], "HOME": str(self.base / "home")},
            cwd=self.roots[0],
            start_new_session=True,
            **self._as_user(),
        )

    def attempt(self, words: Sequence[str]) -> str:
        """Make all attempts behind the words of a sandbox; return what the sandbox itself said."""
        tasks = [(one.name, PRELUDE + one.code, self._variables(one.name)) for one in ESCAPES]
        ended = self.run(words, _RUNNER, json.dumps(tasks))
        if ended.stdout:
            self.outputs = json.loads(ended.stdout)
        self._receive()
        return ended.stderr

    def _receive(self) -> None:
        """Read what was sent to the sockets and to the queue."""
        for key, sock in self._sockets.items():
            try:
                while True:
                    end = sock.accept()[0] if sock.type == socket.SOCK_STREAM else sock
                    self._received.add(end.recv(200).decode(errors="replace"))
                    if end is not sock:
                        end.close()
            except BlockingIOError:
                continue
            except ConnectionError as error:
                self._received.add(f"{key}: {error}")
        buffer = ctypes.create_string_buffer(200)
        while _libc.msgrcv(self._queue, buffer, 64, 0, _IPC_NOWAIT) != -1:
            self._received.add(buffer.raw[8:].split(b"\0")[0].decode())

    def _facts(self, name: str) -> dict[str, object]:
        """Return what is outside of one attempt: content, mode, owner, times and attributes."""
        root = self.base / "roots" / name
        facts: dict[str, object] = {
            path: (root / path).read_bytes() if (root / path).exists() else None
            for path in (*SETTINGS, ".husky/pre-commit")
        }
        walks = (os.walk(self.base / "outside" / name), os.walk(self.readable / name))
        for folder, folders, files in itertools.chain(*walks):
            for entry in (folder, *(os.path.join(folder, one) for one in (*folders, *files))):
                status = os.lstat(entry)
                facts[entry] = (
                    *(status.st_mode, status.st_uid, status.st_gid, status.st_nlink),
                    *(status.st_size, status.st_mtime_ns),
                    os.listxattr(entry, follow_symlinks=False),
                    Path(entry).read_bytes()
                    if stat.S_ISREG(status.st_mode) and status.st_size < 10**6
                    else b"",
                )
        return facts

    def succeeded(self, name: str) -> str:
        """Return by what an attempt was seen to succeed, empty if by nothing."""
        seen = []
        output = self.outputs.get(name, "")
        if self.secret(name) in output or str(self._sizes[name]) in output:
            seen.append("its secret was read")
        if self._facts(name) != self._before[name]:
            seen.append("files outside were changed")
        if name in self._received:
            seen.append("it was heard outside")
        other = self._others.get(name)
        if other is not None and (change := other.change()):
            seen.append(f"a process outside was changed: {change}")
        root = self.base / "roots" / name
        if root.exists() and any(path.is_block_device() for path in root.iterdir()):
            seen.append("there is a device")
        return ", ".join(seen)


@contextmanager
def outside(user: int) -> Iterator[Outside]:
    """Make what lies outside, and take it away again."""
    require_python_of(user, "escapes of another user")
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="toolbus-escapes-")))
        base.chmod(0o755)
        yield Outside(base.resolve(), user, stack)
