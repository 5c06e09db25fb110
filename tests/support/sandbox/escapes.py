"""Attempts to leave a sandbox, each a few lines of Python.

Whether one succeeds is seen from outside (`outside.py`), never by what it says. The names that an
attempt uses stand in `PRELUDE`. `PRELUDE` and the attempts run in the sandbox, without this module.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ESCAPES", "PRELUDE", "SETTINGS", "Escape"]

PRELUDE = """
import ctypes, fcntl, os, signal, socket, stat, subprocess
from os.path import join
libc = ctypes.CDLL(None, use_errno=True)
e = os.environ
name = e["NAME"]  # of this attempt
out, root = e["OUT"], e["ROOT"]  # a folder that it must not reach, and one that it may change
seen = e["SEEN"]  # a folder that it may read, but for `hidden` in it
secret, file = join(out, "secret"), join(out, "file")  # in `out`: not to be read, not to be changed
other = int(e["OTHER"])  # a process outside, of the same user
address, opened = int(e["ADDRESS"]), e["OPENED"]  # of its secret in memory, of its open `secret`
number = {"x86_64": 0, "aarch64": 1}[os.uname().machine]
def show(path):
    print(open(path).read())
def send(sock, to=None):
    sock.sendto(name.encode(), to) if to else sock.send(name.encode())
def connect(family, kind, to):
    sock = socket.socket(family, kind)
    sock.connect(to)
    send(sock)
def rewrite(path, flags=os.O_WRONLY):
    os.write(os.open(path, flags), b"changed")
def swapping(own, target, act):
    # What `own` names is now of its folder, now a symlink to what lies outside.
    link = own + ".link"
    os.symlink(target, link)
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            libc.renameat2(-100, own.encode(), -100, link.encode(), 2)
        os._exit(0)
    for _ in range(5000):
        os.sched_yield()  # to who swaps, where processors are few
        try:
            act(own)
        except OSError:
            pass
def run(*argv):
    subprocess.run(argv)
"""

SETTINGS = (
    ".git/hooks/pre-commit",
    ".git/config",
    ".toolbus/permissions.toml",
    ".vscode/tasks.json",
    "part/deep/.git/hooks/pre-commit",
    "part/deep/.vscode/tasks.json",
)
"""Files in the folder that other programs obey."""


class Escape(NamedTuple):
    """One attempt."""

    name: str
    row: str
    """The key of the row in `holds.py` that says which backends hold it."""
    code: str
    needs_root: bool = False
    """Whether only root succeeds, even unconfined."""
    has_other: bool = False
    """Whether there is a process outside for it."""


_READ = (
    ("reads a file", "show(secret)"),
    ("reads by a symlink", "os.symlink(secret, join(root, 'link')); show(join(root, 'link'))"),
    ("reads by ..", "show(join(root, '../../outside', name, 'secret'))"),
    ("reads by its own root in proc", "show('/proc/self/root' + secret)"),
    (
        "reads by its own working directory in proc",
        "os.chdir(root); show(join('/proc/self/cwd/../../outside', name, 'secret'))",
    ),
    ("reads by a hard link", "os.link(secret, join(root, 'link')); show(join(root, 'link'))"),
    ("reads by a move", "os.rename(secret, join(root, 'moved')); show(join(root, 'moved'))"),
    (
        "reads by an exchange",
        "open(join(root, 'mine'), 'w').close();"
        "libc.renameat2(-100, secret.encode(), -100, join(root, 'mine').encode(), 2);"
        "show(join(root, 'mine'))",
    ),
    (
        "reads by a descriptor of a folder",
        "folder = os.open(out, os.O_PATH); show(os.open('secret', os.O_RDONLY, dir_fd=folder))",
    ),
    (
        "reads while a symlink is swapped",
        "own = join(root, 'own'); open(own, 'w').close(); swapping(own, secret, show)",
    ),
    (
        "reads while a folder is swapped",
        "own = join(root, 'own'); os.mkdir(own); open(join(own, 'secret'), 'w').close();"
        "swapping(own, out, lambda path: show(join(path, 'secret')))",
    ),
    ("lists a folder", "print(os.listdir(join(out, 'list')))"),
    ("executes a program", "run(join(out, 'program'))"),
    (
        "mounts in a new user namespace",
        "os.mkdir(join(root, 'm')); run('unshare', '--user', '--map-root-user', '--mount', 'sh',"
        " '-c', 'mount --bind \"$1\" \"$2\" && cat \"$2/secret\"', 'sh', out, join(root, 'm'))",
    ),
)

_READ_AS_ROOT = (
    (
        "reads by a file handle",
        "handle = ctypes.create_string_buffer((128).to_bytes(8, 'little'), 136);"
        "libc.name_to_handle_at(-100, secret.encode(), handle, ctypes.byref(ctypes.c_int()), 0);"
        "show(libc.open_by_handle_at(os.open(root, 0), handle, 0))",
    ),
    (
        "mounts a folder",
        "os.mkdir(join(root, 'm')); run('mount', '--bind', out, join(root, 'm'));"
        "show(join(root, 'm', 'secret'))",
    ),
    ("makes a device", "os.mknod(join(root, 'disk'), stat.S_IFBLK | 0o600, os.stat('/').st_dev)"),
)

_READ_BY_OTHER = (
    ("reads by the root of a process", "show(f'/proc/{other}/root{secret}')"),
    ("reads by the working directory of a process", "show(f'/proc/{other}/cwd/secret')"),
    ("reads an open file of a process", "show(f'/proc/{other}/fd/{opened}')"),
)

_WRITE = (
    ("overwrites a file", "rewrite(file)"),
    ("appends to a file", "rewrite(file, os.O_WRONLY | os.O_APPEND)"),
    ("truncates a file", "os.truncate(file, 0)"),
    ("truncates by opening", "os.open(file, os.O_RDONLY | os.O_TRUNC)"),
    ("truncates by opening for neither", "os.open(file, os.O_ACCMODE | os.O_TRUNC)"),
    ("makes a file", "rewrite(join(out, 'new'), os.O_WRONLY | os.O_CREAT)"),
    (
        "makes a file without a name",
        "made = os.open(out, os.O_TMPFILE | os.O_RDWR);"
        "libc.linkat(-100, f'/proc/self/fd/{made}'.encode(), -100,"
        " join(out, 'new').encode(), 1024)",
    ),
    ("deletes a file", "os.unlink(file)"),
    ("makes a folder", "os.mkdir(join(out, 'new'))"),
    ("deletes a folder", "os.rmdir(join(out, 'empty'))"),
    ("renames a file", "os.rename(file, join(out, 'new'))"),
    ("makes a symlink", "os.symlink('/', join(out, 'new'))"),
    ("makes a hard link", "os.link(file, join(out, 'new'))"),
    ("makes a pipe", "os.mkfifo(join(out, 'new'))"),
    ("makes a socket", "socket.socketpair()[0].bind(join(out, 'new'))"),
    (
        "moves a file out",
        "open(join(root, 'mine'), 'w').close(); os.rename(join(root, 'mine'), join(out, 'new'))",
    ),
    (
        "links a file out",
        "open(join(root, 'mine'), 'w').close(); os.link(join(root, 'mine'), join(out, 'new'))",
    ),
    ("moves its folder out", "os.rename(root, join(out, 'new'))"),
    ("writes by a symlink", "os.symlink(file, join(root, 'link')); rewrite(join(root, 'link'))"),
    ("writes by a hard link", "os.link(file, join(root, 'link')); rewrite(join(root, 'link'))"),
    ("writes by a descriptor", "rewrite(f'/proc/self/fd/{os.open(file, os.O_PATH)}')"),
    (
        "writes while a symlink is swapped",
        "own = join(root, 'own'); open(own, 'w').close(); swapping(own, file, rewrite)",
    ),
)

_WRITE_WHAT_IS_READ = (
    ("writes what it may read", "rewrite(join(seen, 'file'))"),
    ("makes a file where it may read", "open(join(seen, 'new'), 'w').close()"),
    ("truncates what it may read", "os.truncate(join(seen, 'file'), 0)"),
    (
        "truncates what it may read by opening",
        "os.open(join(seen, 'file'), os.O_RDONLY | os.O_TRUNC)",
    ),
    (
        "writes what it may read by a hard link",
        "os.link(join(seen, 'file'), join(root, 'link')); rewrite(join(root, 'link'))",
    ),
    ("moves what it may read", "os.rename(join(seen, 'file'), join(root, 'moved'))"),
)

_METADATA = (
    ("changes a mode", "os.chmod(file, 0o700)"),
    ("changes times", "os.utime(file, (1, 1))"),
    ("changes an attribute", "os.setxattr(file, 'user.name', b'changed')"),
)

_PROCESSES = (
    ("reads variables of a process", "show(f'/proc/{other}/environ')"),
    (
        "reads memory of a process by proc",
        "memory = open(f'/proc/{other}/mem', 'rb'); memory.seek(address); print(memory.read(80))",
    ),
    (
        "reads memory of a process",
        "buffer = ctypes.create_string_buffer(80);"
        "of = lambda at: (ctypes.c_size_t * 2)(at, 80);"
        "libc.process_vm_readv(other, of(ctypes.addressof(buffer)), 1, of(address), 1, 0);"
        "print(buffer.raw)",
    ),
    (
        "writes memory of a process",
        "buffer = ctypes.create_string_buffer(b'changed');"
        "of = lambda at: (ctypes.c_size_t * 2)(at, 7);"
        "libc.process_vm_writev(other, of(ctypes.addressof(buffer)), 1, of(address), 1, 0)",
    ),
    (
        "traces a process",
        "libc.ptrace(16, other, None, None); os.waitpid(other, 0);"
        "libc.ptrace(4, other, ctypes.c_void_p(address), ctypes.c_void_p(7)); "
        "libc.ptrace(17, other, None, None)",
    ),
    (
        "takes a descriptor of a process",
        "show(libc.syscall(438, os.pidfd_open(other), int(opened), 0))",
    ),
    ("ends a process", "os.kill(other, signal.SIGTERM)"),
    ("ends a group of processes", "os.killpg(other, signal.SIGTERM)"),
    ("ends a thread", "libc.tgkill(other, other, signal.SIGTERM)"),
    ("ends a process by its descriptor", "signal.pidfd_send_signal(os.pidfd_open(other), 15)"),
    ("ends a process by a queued signal", "libc.sigqueue(other, 15, None)"),
    (
        "ends a process by a pipe",
        "read, write = os.pipe(); fcntl.fcntl(read, fcntl.F_SETOWN, other);"
        "fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC); os.write(write, b'x')",
    ),
    (
        "limits a process",
        "import resource; resource.prlimit(other, resource.RLIMIT_NOFILE, (16, 16))",
    ),
    ("slows a process", "os.setpriority(os.PRIO_PROCESS, other, 19)"),
)

_IPC = (
    (
        "reads shared memory",
        "libc.shmat.restype = ctypes.c_void_p;"
        "print(ctypes.string_at(libc.shmat(int(e['MEMORY']), None, 0), 80))",
    ),
    ("sends to a queue", "libc.msgsnd(int(e['QUEUE']), b'1234567\\0' + name.encode(), 64, 0)"),
    (
        "reads a key",
        "keyctl = (250, 219)[number]; buffer = ctypes.create_string_buffer(80);"
        "key = libc.syscall(keyctl, 10, -4, b'user', e['KEY'].encode(), 0);"
        "libc.syscall(keyctl, 11, key, buffer, 80); print(buffer.raw)",
    ),
)

_NETWORK = (
    ("connects by TCP", "connect(socket.AF_INET, 1, ('127.0.0.1', int(e['TCP'])))"),
    ("connects by TCP over IPv6", "connect(socket.AF_INET6, 1, ('::1', int(e['TCP6'])))"),
    ("connects by UDP", "connect(socket.AF_INET, 2, ('127.0.0.1', int(e['UDP'])))"),
    ("sends by UDP", "send(socket.socket(socket.AF_INET, 2), ('127.0.0.1', int(e['UDP'])))"),
    (
        "sends by netlink",
        "send(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 2), (int(e['NETLINK']), 0))",
    ),
)

_UNIX = (
    ("connects to a socket", "connect(socket.AF_UNIX, 1, e['STREAM'])"),
    ("sends to a socket", "send(socket.socket(socket.AF_UNIX, 2), e['DATAGRAM'])"),
    ("sends from a pair", "send(socket.socketpair(type=2)[0], e['DATAGRAM'])"),
    ("sends from a raw pair", "send(socket.socketpair(type=3)[0], e['DATAGRAM'])"),
    ("connects to an abstract socket", "connect(socket.AF_UNIX, 1, '\\0' + e['ABSTRACT'])"),
    (
        "sends to an abstract socket",
        "send(socket.socket(socket.AF_UNIX, 2), '\\0' + e['ABSTRACT'] + 'd')",
    ),
    (
        "sends from a pair to an abstract socket",
        "send(socket.socketpair(type=2)[0], '\\0' + e['ABSTRACT'] + 'd')",
    ),
)

_PROTECT = (
    ("reads a secret in its folder", "show(join(root, '.env'))"),
    *((f"writes {path}", f"rewrite(join(root, '{path}'))") for path in SETTINGS),
    (
        "replaces a setting",
        "open(join(root, 'mine'), 'w').close();"
        "os.rename(join(root, 'mine'), join(root, '.git/config'))",
    ),
    (
        "replaces the folder of a setting",
        "os.rename(join(root, '.vscode'), join(root, 'old')); os.mkdir(join(root, '.vscode'));"
        "rewrite(join(root, '.vscode/tasks.json'), os.O_WRONLY | os.O_CREAT)",
    ),
    (
        "replaces .git",
        "os.rename(join(root, '.git'), join(root, 'old')); os.makedirs(join(root, '.git/hooks'));"
        "rewrite(join(root, '.git/hooks/pre-commit'), os.O_WRONLY | os.O_CREAT)",
    ),
    (
        "replaces the folder of a part",
        "os.rename(join(root, 'part'), join(root, 'old'));"
        "os.makedirs(join(root, 'part/deep/.vscode'));"
        "rewrite(join(root, 'part/deep/.vscode/tasks.json'), os.O_WRONLY | os.O_CREAT)",
    ),
    (
        "replaces the folder of a repository",
        "os.rename(join(root, 'part'), join(root, 'old'));"
        "os.makedirs(join(root, 'part/deep/.git/hooks'));"
        "rewrite(join(root, 'part/deep/.git/hooks/pre-commit'), os.O_WRONLY | os.O_CREAT)",
    ),
    (
        "links a setting",
        "os.link(join(root, '.git/config'), join(root, 'link')); rewrite(join(root, 'link'))",
    ),
)

_NEW_SETTINGS = (
    (
        "makes a setting",
        "os.mkdir(join(root, '.husky'));"
        "rewrite(join(root, '.husky/pre-commit'), os.O_WRONLY | os.O_CREAT)",
    ),
)

ESCAPES: tuple[Escape, ...] = (
    *(Escape(name, "read", code) for name, code in _READ),
    *(Escape(name, "read", code, needs_root=True) for name, code in _READ_AS_ROOT),
    *(Escape(name, "read", code, has_other=True) for name, code in _READ_BY_OTHER),
    *(Escape(name, "write", code) for name, code in _WRITE),
    *(Escape(name, "write", code) for name, code in _WRITE_WHAT_IS_READ),
    Escape("reads what is hidden", "hide in read", "show(join(seen, 'hidden'))"),
    Escape(
        "reads what is hidden by a hard link",
        "hide in read",
        "os.link(join(seen, 'hidden'), join(root, 'link')); show(join(root, 'link'))",
    ),
    *(Escape(name, "metadata", code) for name, code in _METADATA),
    Escape("changes an owner", "metadata", "os.chown(file, 7, 7)", needs_root=True),
    Escape("sees a size", "names", "print(os.stat(join(out, 'sized')).st_size)"),
    *(Escape(name, "processes", code, has_other=True) for name, code in _PROCESSES),
    *(Escape(name, "processes", code) for name, code in _IPC[:2]),
    Escape(_IPC[2][0], "processes", _IPC[2][1], has_other=True),
    Escape(
        "enters the namespaces of a process",
        "processes",
        "run('nsenter', '-t', str(other), '--mount', 'cat', secret)",
        needs_root=True,
        has_other=True,
    ),
    Escape(
        "reads arguments of a process",
        "process list",
        "show(f'/proc/{other}/cmdline')",
        has_other=True,
    ),
    *(Escape(name, "network", code) for name, code in _NETWORK),
    *(Escape(name, "unix sockets", code) for name, code in _UNIX),
    *(Escape(name, "protect", code) for name, code in _PROTECT),
    *(Escape(name, "new settings", code) for name, code in _NEW_SETTINGS),
)
"""All attempts; what each reaches for lies in folders of its own, named after it."""
