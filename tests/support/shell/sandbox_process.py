"""The process inside of a sandbox: it runs command lines one after the other, and says what each
of them changed.

`sandbox.py` starts it by `unshare`, in namespaces of its own. It mounts a second root, where each
folder of the system is the lower layer of an overlay: what a line changes is then in the upper
layer, wherever it is. It reads JSON lines from stdin and writes JSON lines to stdout. It is the
first process of its namespace, so that whatever a line leaves behind is its child.

It changes its own root, so that lines are started without a fork of this interpreter, and keeps the
former root as its current directory: absolute paths are inside of the second root, relative ones
are those of the system.
"""

from __future__ import annotations

import ctypes
import filecmp
import json
import os
import select
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2
SYS_MOUNT_SETATTR = 442
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
MOUNT_ATTR_RDONLY = 0x1

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
FRESH = frozenset({"dev", "proc", "run", "sys", "lost+found"})
"""Folders that are not those of the system: kernel's files, and sockets of its services."""
PLACE = "run"
"""Where it mounts its own files: no folder that it shows is around it."""
MAX_OUTPUT = 100_000
SECRET = b"the-key-of-the-host"
"""A variable of this process and of the witness has this value; no line gets it."""
LEFT_S = 0.5
"""So long may processes go on when their line has ended, as those of `<(...)`."""

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount something, or raise `OSError`."""
    arguments = (source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags))
    if _libc.mount(*arguments, options.encode() or None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} {target} {options}: {os.strerror(number)}")


def unmount(target: str) -> None:
    """Unmount something, or raise `OSError`."""
    if _libc.umount2(target.encode(), MNT_DETACH) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"umount {target}: {os.strerror(number)}")


def make_read_only(target: str) -> None:
    """Make a mount and all below it read-only, or raise `OSError`."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    arguments = (AT_FDCWD, target.encode(), AT_RECURSIVE, ctypes.byref(attributes), size)
    if _libc.syscall(SYS_MOUNT_SETATTR, *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount_setattr {target}: {os.strerror(number)}")


class _Search:
    """Looks for bytes in a stream, also in what its output is cut by."""

    def __init__(self, wanted: bytes) -> None:
        self.found = False
        self._wanted = wanted
        self._end = b""

    def look_at(self, data: bytes) -> None:
        text = self._end + data
        self.found = self.found or self._wanted in text
        self._end = text[-len(self._wanted) :]


class Layer:
    """One folder of the system, below an overlay."""

    def __init__(self, lower: str, place: str, target: str) -> None:
        self.lower = lower
        self._place = place
        self._target = target
        self.upper = os.path.join(place, "upper")
        self._begun: tuple[int, ...] = ()

    def mount(self) -> None:
        """Begin with an empty upper layer."""
        work = os.path.join(self._place, "work")
        os.makedirs(self.upper)
        os.makedirs(work)
        shutil.copystat(self.lower, self.upper)
        layers = f"lowerdir={self.lower},upperdir={self.upper},workdir={work},userxattr"
        mount("overlay", self._target, "overlay", MS_NOSUID | MS_NODEV, layers)
        # Not those of the system's own folder: other processes go on there.
        self._begun = facts(os.lstat(self.upper))

    def unmount(self) -> None:
        """Forget all changes."""
        unmount(self._target)
        shutil.rmtree(self._place)

    def changes(self) -> list[str] | None:
        """Return the paths that changed; None if nothing was even opened for writing."""
        is_same = facts(os.lstat(self.upper)) == self._begun
        with os.scandir(self.upper) as entries:
            names = [entry.name for entry in entries]
        if is_same and not names:
            return None
        changed = [] if is_same else [f"/{self.lower}"]
        for name in names:
            path = os.path.join(self.upper, name)
            changed += self._paths(path, os.path.join(self.lower, name))
        return changed

    def _paths(self, upper: str, lower: str) -> Iterator[str]:
        if differs(upper, lower):
            yield f"/{lower}"
        if not stat.S_ISDIR(os.lstat(upper).st_mode):
            return
        with os.scandir(upper) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            yield from self._paths(os.path.join(upper, name), os.path.join(lower, name))


def differs(path: str, former: str) -> bool:
    """Whether something of the upper layer is not as it was: kind, mode, owner, time, content."""
    try:
        before = os.lstat(former)
    except FileNotFoundError:
        return True
    after = os.lstat(path)
    if facts(before) != facts(after):
        return True
    if stat.S_ISLNK(after.st_mode):
        return os.readlink(path) != os.readlink(former)
    return stat.S_ISREG(after.st_mode) and not filecmp.cmp(path, former, shallow=False)


def facts(status: os.stat_result) -> tuple[int, ...]:
    """Return what must not change; the size of a folder is the file system's own matter."""
    size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, size)


class Inside:
    """The second root, and what runs there."""

    def __init__(self, needed: str) -> None:
        self._needed = needed.lstrip("/")
        self._root = os.path.join(PLACE, "root")
        self._layers: list[Layer] = []
        self._fresh: dict[str, tuple[int, ...]] = {}
        self._system: tuple[object, ...] = ()
        self._witness = 0
        self._ask = self._answer = -1

    def make(self) -> None:
        """Mount everything, and make the rest of the system read-only.

        Raises `OSError` where the machine does not allow it.
        """
        os.chdir("/")
        mount("", "/", "", MS_REC | MS_PRIVATE)
        # Lines run as the user that runs the tests: whatever leads out of the second root leads to
        # nothing that could be written.
        make_read_only("/")
        mount("tmpfs", PLACE, "tmpfs")
        os.makedirs(self._root)
        with os.scandir() as entries:
            folders = sorted(entries, key=lambda entry: entry.name)
        for entry in folders:
            if entry.is_symlink():
                os.symlink(os.readlink(entry.name), os.path.join(self._root, entry.name))
            elif entry.is_dir() and entry.name not in FRESH:
                self._add(entry.name)
        for name in ("dev", "proc", "run", "sys"):
            os.makedirs(os.path.join(self._root, name), exist_ok=True)
        self._make_devices()
        mount("proc", os.path.join(self._root, "proc"), "proc", MS_RDONLY)
        os.chroot(self._root)
        self._start_witness()
        self._fresh = self._fresh_state()
        self._system = self._system_state()

    def _add(self, lower: str) -> None:
        """Show a folder of the system, or if that is not allowed, of its folders the needed one.

        The kernel shows no folder that another file system is mounted in. What is left out is an
        empty folder; what lines write there is seen too.
        """
        target = os.path.join(self._root, lower)
        os.makedirs(target, exist_ok=True)
        layer = Layer(lower, os.path.join(PLACE, "layers", str(len(self._layers))), target)
        try:
            layer.mount()
        except OSError:
            if lower in ("usr", "etc", self._needed):
                raise
            shutil.rmtree(os.path.dirname(layer.upper))
            shutil.copystat(lower, target)
            rest = self._needed.removeprefix(lower + "/")
            if rest != self._needed:
                self._add(os.path.join(lower, rest.partition("/")[0]))
            return
        self._layers.append(layer)

    def _make_devices(self) -> None:
        folder = os.path.join(self._root, "dev")
        for name in DEVICES:
            path = os.path.join(folder, name)
            with open(path, "wb"):
                pass
            mount(f"/dev/{name}", path, "", MS_BIND)
        for name, target in (
            ("fd", "fd"),
            ("stdin", "fd/0"),
            ("stdout", "fd/1"),
            ("stderr", "fd/2"),
        ):
            os.symlink(f"/proc/self/{target}", os.path.join(folder, name))
        os.mkdir(os.path.join(folder, "shm"))
        os.chmod(os.path.join(folder, "shm"), 0o1777)

    def _start_witness(self) -> None:
        """Start a process that no line may end or stop: it answers each byte with a byte."""
        asked, self._ask = os.pipe()
        self._answer, answered = os.pipe()
        self._witness = self._spawn(
            ["cat"], {"PATH": os.defpath, "HOST_KEY": SECRET.decode()}, (asked, answered, 2)
        )
        os.close(asked)
        os.close(answered)

    def _spawn(self, command: list[str], variables: dict[str, str], files: Sequence[int]) -> int:
        """Start a program with these files as stdin, stdout and stderr; return its process id."""
        actions = [(os.POSIX_SPAWN_DUP2, file, number) for number, file in enumerate(files)]
        return os.posix_spawnp(
            command[0],
            command,
            variables,
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )

    def _witness_answers(self) -> bool:
        try:
            os.write(self._ask, b".")
        except BrokenPipeError:
            return False
        ready, _, _ = select.select([self._answer], [], [], LEFT_S)
        return bool(ready) and bool(os.read(self._answer, 1))

    def _end_witness(self) -> None:
        os.close(self._ask)
        os.close(self._answer)
        os.kill(self._witness, signal.SIGKILL)
        os.waitpid(self._witness, 0)

    def _fresh_state(self) -> dict[str, tuple[int, ...]]:
        """Return what is in the root itself, and in the folders that are not the system's."""
        state = {}
        waiting = [self._root]
        layered = {os.path.join(self._root, layer.lower) for layer in self._layers}
        layered.add(os.path.join(self._root, "proc"))
        while waiting:
            folder = waiting.pop()
            state[folder] = facts(os.lstat(folder))
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.path in layered:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.name not in DEVICES:
                        state[entry.path] = facts(entry.stat(follow_symlinks=False))
        return state

    def _system_state(self) -> tuple[object, ...]:
        """Return what else a line could change: names, mounts, limits, semaphores and the like."""
        texts = []
        for name in ("self/mountinfo", "sysvipc/shm", "sysvipc/sem", "sysvipc/msg", "net/route"):
            with open(f"/proc/{name}", encoding="utf-8") as file:
                texts.append(file.read())
        priority = os.getpriority(os.PRIO_PROCESS, self._witness)
        processors = len(os.sched_getaffinity(self._witness))
        return (*texts, os.uname().nodename, priority, processors)

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        """Run one line; return its exit status, its output and what it changed."""
        outcome = self._execute(task)
        left = self._end_processes(outcome.pop("group"))
        changed = self._other_changes()
        is_mounted_anew = False
        for layer in self._layers:
            changes = layer.changes()
            if changes is not None:
                changed += changes
                layer.unmount()
                layer.mount()
                is_mounted_anew = True
        if is_mounted_anew:
            self._fresh = self._fresh_state()
            self._system = self._system_state()
        outcome["left"] = left
        outcome["changed"] = sorted(changed)
        return outcome

    def _other_changes(self) -> list[str]:
        changed = []
        fresh = self._fresh_state()
        for path in fresh.keys() | self._fresh.keys():
            if fresh.get(path) != self._fresh.get(path):
                changed.append(path.removeprefix(self._root) or "/")
        self._fresh = fresh
        if not self._witness_answers():
            changed.append("a process that it did not start")
            self._end_witness()
            self._start_witness()
            self._system = self._system_state()
        system = self._system_state()
        if system != self._system:
            changed.append("the state of the system")
            self._system = system
        return changed

    def _execute(self, task: dict[str, Any]) -> dict[str, Any]:
        reading, writing = os.pipe()
        nothing = os.open("/dev/null", os.O_RDONLY)
        system = os.open(".", os.O_RDONLY)
        os.chdir(task["directory"])
        command = ["bash", "--noprofile", "--norc", "-c", task["line"]]
        child = self._spawn(command, task["environment"], (nothing, writing, writing))
        os.fchdir(system)
        for file in (system, nothing, writing):
            os.close(file)
        ended = os.pidfd_open(child)
        output = bytearray()
        shown = _Search(SECRET)
        deadline = time.monotonic() + float(task["timeout_s"])
        is_timed_out = False
        waiting = [reading, ended]
        while ended in waiting:
            rest = deadline - time.monotonic()
            ready, _, _ = select.select(waiting, [], [], max(rest, 0))
            if not ready:
                is_timed_out = True
                break
            if ended in ready:
                waiting.remove(ended)
            if reading in ready:
                data = os.read(reading, 65536)
                output += data[: MAX_OUTPUT - len(output)]
                shown.look_at(data)
                if not data:
                    waiting.remove(reading)
        status = None
        if not is_timed_out:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            while select.select([reading], [], [], 0)[0] and (data := os.read(reading, 65536)):
                output += data[: MAX_OUTPUT - len(output)]
                shown.look_at(data)
        os.close(reading)
        os.close(ended)
        text = output.decode(errors="replace")
        return {
            "exit": status,
            "output": text,
            "shows_secret": shown.found,
            "timed_out": is_timed_out,
            "group": child,
        }

    def _end_processes(self, group: int) -> list[str]:
        """End what the line left behind; return the names of those that have left its group.

        The others end with their line wherever a shell runs it.
        """
        deadline = time.monotonic() + LEFT_S
        while self._others() and (rest := deadline - time.monotonic()) > 0:
            self._reap()
            if self._others():
                signal.sigtimedwait([signal.SIGCHLD], min(rest, 0.05))
        left = []
        for process in self._others():
            if os.getpgid(process) != group:
                left.append(_name(process))
            os.kill(process, signal.SIGKILL)
        while self._others():
            signal.sigtimedwait([signal.SIGCHLD], 0.05)
            self._reap()
        return left

    def _others(self) -> list[int]:
        own = (os.getpid(), self._witness)
        return [
            int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in own
        ]

    def _reap(self) -> None:
        for process in self._others():
            try:
                os.waitpid(process, os.WNOHANG)
            except ChildProcessError:
                continue  # a child of what was left


def _name(process: int) -> str:
    with open(f"/proc/{process}/comm", encoding="utf-8") as file:
        return file.read().strip()


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    inside = Inside(sys.argv[1])
    try:
        # Its own /proc: that of the machine shows other processes.
        mount("proc", "/proc", "proc", MS_RDONLY)
        inside.make()
    except OSError as error:
        answer({"fault": str(error)})
        return
    answer({})
    for text in sys.stdin:
        answer(inside.run(json.loads(text)))


def answer(value: dict[str, Any]) -> None:
    """Write one line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
