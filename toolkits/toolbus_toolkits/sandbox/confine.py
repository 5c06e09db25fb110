"""A program that confines itself by Landlock and seccomp, then becomes another program.

It needs no namespaces and no privileges, and runs as `python -I -S confine.py FD PROGRAM ARG...`.
The descriptor gives JSON, with keys of `Confinement`: `read`, `write`, `network`, `unix_sockets`
and `max_processes`; and with `environment`, all variables of PROGRAM. Paths are real: one with a
symlink in it is an error. What goes wrong before PROGRAM is executed is one line on stderr and exit
status 125; what cannot be confined is never executed.

It is run as a file of its own, so it imports nothing of this package. Each import costs
milliseconds at every start.
"""

import ctypes
import errno
import json
import os
import stat
import struct
import sys
from typing import Any, NamedTuple, NoReturn

_FAILED = 125

# linux/prctl.h, linux/capability.h, linux/resource.h
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES = 64
_RLIMIT_NPROC, _RLIMIT_RTTIME = 6, 15
_IGNORED_BY_PYTHON = (13, 25)  # SIGPIPE, SIGXFSZ

# linux/landlock.h. A right that a kernel does not know must not be asked for.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _OPENAT2 = 444, 445, 446, 437
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FIRST_RIGHTS = (1 << 13) - 1
_LATER_RIGHTS = {2: 1 << 13, 3: _TRUNCATE, 5: _IOCTL_DEV}
"""Rights by the ABI that brought them; the first of them is to link and rename between folders."""
_TRUNCATE_ABI, _TCP_ABI, _SCOPE_ABI = 3, 4, 6
_TCP = 0b11  # bind, connect
_SCOPE = 0b11  # abstract sockets, signals
_RESOLVE_NO_SYMLINKS = 0x04
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

# linux/seccomp.h, linux/filter.h, linux/audit.h
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32 = 0x40000000
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The value of the audit architecture, and the column of the numbers below."""

_NEW_NAMESPACES = 0x7E020080
_LOW_BYTE = 0xFF  # of `clone`: the signal of the end, where CLONE_NEWTIME has no meaning
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE = 1, 5, 0xF
_EVERY_BIT = 0xFFFFFFFF

_NUMBERS = {
    # Other processes: their memory, descriptors, limits and priorities.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "prlimit64": (302, 261),
    "setrlimit": (160, 164),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    # System V IPC and message queues: any process of the same user uses them by a number.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # Keys of the user.
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    # Parts of the kernel in which errors are found often, and programs do without.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # Namespaces and mounts.
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    # What is refused by its arguments, or where Landlock lacks a right.
    "socket": (41, 198),
    "socketpair": (53, 199),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "truncate": (76, 45),
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
}

_REFUSED = (
    "ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp"
    " shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl"
    " mq_open mq_unlink keyctl add_key request_key bpf perf_event_open userfaultfd"
    " setns mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount fspick"
    " mount_setattr open_tree_attr open_by_handle_at kexec_load kexec_file_load"
)
# Programs then take older calls: for `clone3` it is `clone`, whose flags a filter can read.
_MISSING = "clone3 io_uring_setup io_uring_enter io_uring_register"


class _Failure(OSError):
    """What the line on stderr says."""


class _Rule(NamedTuple):
    """A system call that is refused, always or by the value of one argument."""

    call: str
    error: int = errno.EPERM
    argument: int | None = None
    """Which argument is looked at; its lower 32 bits, since the kernel takes no more of it."""
    mask: int = _EVERY_BIT
    values: tuple[int, ...] = ()
    is_allowed: bool = True
    """Whether the values are the only ones that pass, else the only ones that are refused."""

    def instructions(self, number: int) -> list[bytes]:
        """Return what refuses the call, given its number is loaded; it is loaded afterwards."""
        refuse = _instruction(_RETURN, _REFUSE | self.error)
        if self.argument is None:
            return [_instruction(_EQUAL, number, otherwise=1), refuse]
        last = len(self.values) - 1
        comparisons = [
            _instruction(
                _EQUAL,
                value,
                then=last - at + (1 if self.is_allowed else 0),
                otherwise=0 if self.is_allowed or at < last else 1,
            )
            for at, value in enumerate(self.values)
        ]
        block = [
            _instruction(_LOAD, _ARGUMENTS_AT + 8 * self.argument),
            _instruction(_AND, self.mask),
            *comparisons,
            refuse,
            _instruction(_LOAD, _NUMBER_AT),
        ]
        return [_instruction(_EQUAL, number, otherwise=len(block)), *block]


def _instruction(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _rules(options: dict[str, Any], abi: int) -> list[_Rule]:
    """Return what the filter refuses, more where Landlock cannot."""
    rules = [_Rule(call) for call in _REFUSED.split()]
    rules += [_Rule(call, errno.ENOSYS) for call in _MISSING.split()]
    rules += [
        _Rule("clone", argument=0, mask=_NEW_NAMESPACES & ~_LOW_BYTE, values=(0,)),
        _Rule("unshare", argument=0, mask=_NEW_NAMESPACES, values=(0,)),
        # 0 is the calling process. The limits of another one of this user could end it.
        _Rule("prlimit64", argument=0, values=(0,)),
        # By this limit the launcher knows what a command has left behind.
        _Rule("prlimit64", argument=1, values=(_RLIMIT_RTTIME,), is_allowed=False),
        _Rule("setrlimit", argument=0, values=(_RLIMIT_RTTIME,), is_allowed=False),
        *(_Rule(call, argument=0, values=(0,)) for call in _NUMBERS if call.startswith("sched_")),
        # Which kind (a process, a group; a user is refused), then which one.
        _Rule("setpriority", argument=0, values=(0, 1)),
        _Rule("setpriority", argument=1, values=(0,)),
        _Rule("ioprio_set", argument=0, values=(1, 2)),
        _Rule("ioprio_set", argument=1, values=(0,)),
        *_socket_rules(options["network"], options["unix_sockets"]),
    ]
    if abi < _SCOPE_ABI:
        rules += _signal_rules()
    if abi < _TRUNCATE_ABI:
        rules += _truncate_rules()
    return rules


def _socket_rules(network: bool, unix_sockets: bool) -> list[_Rule]:
    families: tuple[int, ...] = (_AF_INET, _AF_INET6, _AF_NETLINK) if network else ()
    if unix_sockets:
        families += (_AF_UNIX,)
    # EACCES is what POSIX names for a socket that the caller may not have.
    rules = [
        _Rule("socket", errno.EACCES, 0, values=families),
        _Rule("socketpair", errno.EACCES, 0, values=(_AF_UNIX,)),
    ]
    if not unix_sockets:
        # One end of a pair of datagram sockets can send to any other path.
        types = (_SOCK_STREAM, _SOCK_SEQPACKET)
        rules.append(_Rule("socketpair", errno.EACCES, 1, _SOCK_TYPE, types))
    return rules


def _signal_rules() -> list[_Rule]:
    """Refuse signals, but those to one's own process group, which the launcher made.

    A filter cannot know whether another process is within.
    """
    calls = "tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal"
    return [
        _Rule("kill", argument=0, values=(0,)),
        *(_Rule(call) for call in calls.split()),
        # The owner of a descriptor gets a signal that the caller chooses: F_SETOWN, F_SETOWN_EX,
        # FIOSETOWN, SIOCSPGRP.
        _Rule("fcntl", argument=1, values=(8, 15), is_allowed=False),
        _Rule("ioctl", argument=1, values=(0x8901, 0x8902), is_allowed=False),
    ]


def _truncate_rules() -> list[_Rule]:
    # O_TRUNC without O_WRONLY or O_RDWR; 3 is neither for Landlock.
    mask, values = os.O_TRUNC | os.O_ACCMODE, (os.O_TRUNC, os.O_TRUNC | os.O_ACCMODE)
    return [
        _Rule("truncate"),
        _Rule("openat2", errno.ENOSYS),  # a filter cannot read its flags
        _Rule("open", errno.EPERM, 1, mask, values, is_allowed=False),
        _Rule("openat", errno.EPERM, 2, mask, values, is_allowed=False),
    ]


def seccomp_filter(options: dict[str, Any], abi: int) -> bytes:
    """Return the filter for `network` and `unix_sockets` of the options, as the kernel reads it."""
    return _filter(_rules(options, abi))


def _filter(rules: list[_Rule]) -> bytes:
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise _Failure(f"no system call numbers are known for {machine}")
    architecture, column = _ARCHITECTURES[machine]
    kill = _instruction(_RETURN, _KILL)
    program = [
        # 32-bit calls and those of x32 have other numbers.
        _instruction(_LOAD, _ARCHITECTURE_AT),
        _instruction(_EQUAL, architecture, then=1),
        kill,
        _instruction(_LOAD, _NUMBER_AT),
        _instruction(_AT_LEAST, _X32, otherwise=1),
        kill,
    ]
    for rule in rules:
        number = _NUMBERS[rule.call][column]
        if number is not None:
            program += rule.instructions(number)
    program.append(_instruction(_RETURN, _ALLOW))
    return b"".join(program)


_libc = ctypes.CDLL(None, use_errno=True)


def _call(what: str, function: str, *arguments: Any) -> int:
    """Call a function of the C library; `what` stands in the message if it fails."""
    result: int = getattr(_libc, function)(*(_c_value(argument) for argument in arguments))
    if result == -1:
        raise _Failure(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _c_value(argument: Any) -> Any:
    # Variadic functions read 64 bits of an argument.
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def _drop_capabilities() -> None:
    """Drop all capabilities for good.

    Landlock does not confine what they permit: `/proc/PID/environ` of all processes, for one.
    """
    _call("no_new_privs", "prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(_CAPABILITIES):
        # Refused to a user without CAP_SETPCAP: then no_new_privs keeps the set from being used.
        _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_long(capability), 0, 0, 0)
    _call("capabilities", "prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _call("capabilities", "capset", struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24))


def _limit_processes(count: int) -> None:
    """Limit the processes of this user, threads too, to `count` beside the others that run now."""
    user = os.getuid()
    if user == 0:
        raise _Failure("max_processes: the kernel limits no processes of root")
    others = 0
    for name in os.listdir("/proc"):
        try:
            tasks = os.stat(f"/proc/{name}/task")
        except OSError:  # not a process, or it has ended
            continue
        if tasks.st_uid == user and name.isdigit() and name != str(os.getpid()):
            others += tasks.st_nlink - 2
    limit = others + count
    _call("max_processes", "setrlimit", _RLIMIT_NPROC, struct.pack("=QQ", limit, limit))


def _landlock_abi() -> int:
    """Return the version of Landlock; 0 where the kernel has none or it is switched off."""
    version: int = _libc.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), 1)
    return max(0, version)


def _restrict_files(options: dict[str, Any], abi: int) -> None:
    handled = _FIRST_RIGHTS | sum(right for since, right in _LATER_RIGHTS.items() if abi >= since)
    tcp = _TCP if abi >= _TCP_ABI and not options["network"] else 0
    scope = _SCOPE if abi >= _SCOPE_ABI else 0
    attributes = struct.pack("=QQQ", handled, tcp, scope)
    ruleset = _call("Landlock", "syscall", _CREATE_RULESET, attributes, len(attributes), 0)
    for path in options["read"]:
        _allow(ruleset, path, _READ)
    for path in options["write"]:
        _allow(ruleset, path, handled)
    for name in _DEVICES:
        if os.path.exists(f"/dev/{name}"):
            _allow(ruleset, f"/dev/{name}", _READ_FILE | _WRITE_FILE)
    _call("Landlock", "syscall", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Allow rights at and below a path."""
    # Another confined process may have put a symlink into the path since it was resolved.
    how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS)
    name = os.fsencode(path)
    opened = _call(f"cannot open {path!a}", "syscall", _OPENAT2, -1, name, how, len(how))
    if not stat.S_ISDIR(os.fstat(opened).st_mode):
        rights &= _OF_A_FILE
    rule = struct.pack("=Qi", rights, opened)
    _call(f"cannot allow {path!a}", "syscall", _ADD_RULE, ruleset, 1, rule, 0)
    os.close(opened)


def _refuse_calls(rules: list[_Rule]) -> None:
    program = _filter(rules)
    buffer = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    _call("seccomp", "prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, described, 0, 0)


def _confine(options: dict[str, Any]) -> None:
    abi = _landlock_abi()
    if abi < 1:
        raise _Failure("the kernel has no Landlock, or it is switched off")
    if abi < _SCOPE_ABI and options["unix_sockets"]:
        raise _Failure(
            f"unix_sockets needs Landlock ABI {_SCOPE_ABI} (Linux 6.12), the kernel has ABI {abi}"
        )
    _drop_capabilities()
    if options["max_processes"] is not None:
        _limit_processes(options["max_processes"])
    _restrict_files(options, abi)
    _refuse_calls(_rules(options, abi))


def main() -> NoReturn:
    """Confine this process as its first argument says, and execute the rest."""
    descriptor, *argv = sys.argv[1:]
    try:
        with open(int(descriptor), "rb") as file:
            options = json.load(file)
        _confine(options)
        for number in _IGNORED_BY_PYTHON:
            _libc.signal(number, None)
        os.execvpe(argv[0], argv, options["environment"])
    except OSError as error:
        os.write(2, f"confine: {error}\n".encode())
        sys.exit(_FAILED)


if __name__ == "__main__":
    main()
