"""The shell sessions of callers: directory and exported variables, from command to command.

A command writes them at its end into a file that is there for that: after its last line, and in a
trap of bash where `exit` or an error ends it before. What ends without both changes nothing, and
the result says so: one that was killed, has run `exec`, or exits with a trap of its own. Functions,
aliases and options of the shell are not saved.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from shlex import quote
from typing import NamedTuple

from toolbus import ToolFailed
from toolbus_toolkits.callers import MAX_ASKERS, MAX_ASSESSED, Asker, LastUsed
from toolbus_toolkits.shell.config import READING

__all__ = ["ShellSessions", "ShellState", "StateDump"]

_MAX_BYTES = 64 * 1024
"""Of the variables of one caller: each command gets them beside its line, for which the system has
at least 128 KiB, on Linux 2 MiB."""
_IN_MEMORY = "/dev/shm"
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_EXPORTED = re.compile(
    rb"""^(?:declare -[a-zA-Z]+|export) (?P<name>[A-Za-z_][A-Za-z0-9_]*)="""
    rb"""(?P<value>\$'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\n""",
    re.DOTALL | re.MULTILINE,
)
"""The second word is that of the mode `posix`."""
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"E": b"\x1b", b"f": b"\f"}
_ESCAPED |= {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ESCAPED |= {b"%03o" % code: bytes([code]) for code in range(256)}
"""Of the quotes `$'...'`, which bash writes where a value has control characters."""
_OF_SANDBOX = ("HOME", "TMPDIR")
"""Of a confined command they may be folders that end with it."""
_UNSAVED = READING | {"PWD", "OLDPWD", "SHLVL", "_"}
"""The latter are what each bash sets for itself."""


@dataclass(frozen=True, slots=True)
class ShellState:
    """What a command starts with."""

    directory: str
    variables: Mapping[str, str]
    changed: frozenset[str] = frozenset()
    """The variables that differ from those of a first command: of other value, new, or removed."""

    def at(self, directory: str) -> ShellState:
        """Return the same in another directory."""
        return ShellState(directory, self.variables, self.changed)


class StateDump(NamedTuple):
    """How a command writes down what it ends with."""

    script: str
    """What bash runs; the command is its first parameter."""
    descriptor: int
    """Of the file that has it then. By its path, a command may have put another one there."""


@dataclass(slots=True)
class _Session:
    """What one asker's next command starts with."""

    state: ShellState
    assessed: LastUsed[str, ShellState] = field(default_factory=partial(LastUsed, MAX_ASSESSED))
    """The last commands that were assessed, with what they would start with."""


class ShellSessions:
    """What each asker's next command starts with.

    Args:
        first: What a first command starts with.
        keep: Whether a next one starts with what the last one ended with; else all are first ones.
        shows: Whether a confined command, by the working directories of its call, can start in a
            directory; None if they are unconfined.
    """

    def __init__(
        self,
        first: ShellState,
        *,
        keep: bool,
        shows: Callable[[str, tuple[str, ...]], bool] | None = None,
    ) -> None:
        self._first = first
        self._keep = keep
        self._shows = shows
        self._lock = threading.Lock()  # commands are assessed on other threads than they are run on
        self._by_asker = LastUsed[Asker, _Session](MAX_ASKERS)
        # A disk takes milliseconds to delete a file, in which the event loop would stand still.
        self._folder = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK | os.X_OK) else None

    def state_to_assess(self, asker: Asker, command: str) -> ShellState:
        """Return what a command would start with, and remember that it was assessed so."""
        if not self._keep:
            return self._first
        with self._lock:
            session = self._session(asker)
            session.assessed[command] = session.state
            return session.state

    def begin(self, asker: Asker, command: str, workdirs: tuple[str, ...]) -> ShellState:
        """Return what a command starts with; `workdirs` are those of its call.

        Raises `ToolFailed` if another one has changed that since this one was assessed: in another
        directory it would be another command; and if the directory does not exist any more.
        """
        if not self._keep:
            return self._first
        with self._lock:
            session = self._session(asker)
            state = session.state
            if session.assessed.get(command, state) != state:
                del session.assessed[command]
                text = f"another command has changed the directory to {state.directory}, or the"
                text += " variables, since this one was judged: nothing was run, call it again"
                # Not `retryable`: a client would repeat it by itself, and judge nothing again.
                raise ToolFailed(text, details={"reason": "changed"})
            fault = ""
            if self._shows is not None and not self._shows(state.directory, workdirs):
                fault = "is not in the sandbox"  # such as its own /tmp, which has gone
            elif not os.path.isdir(state.directory):
                fault = "does not exist any more"
            if fault:
                session.state = self._first
                text = f"the directory {state.directory} {fault}: nothing was run,"
                text += f" and the next command starts in {self._first.directory}"
                raise ToolFailed(text, details={"reason": "no_directory"})
            return state

    @contextmanager
    def dumping(self) -> Iterator[StateDump | None]:
        """Let a command dump its state at its end, into a file that exists while the block runs.

        Gives None if nothing is kept.
        """
        if not self._keep:
            yield None
            return
        if self._shows is None:
            descriptor, path = tempfile.mkstemp(prefix="toolbus-shell-", dir=self._folder)
        else:  # where the folder is not seen; the command gets the descriptor
            descriptor, path = os.memfd_create("toolbus-shell"), ""
        # Only builtins: `env` would cost as much as all the rest of a short command. They are named
        # so, and the file is written by `>|`, whatever functions and options the command has set.
        words = ("pwd -P", "printf '\\0'", "export -p", "printf '\\0'")
        dump = " && ".join(f"builtin {word}" for word in words)
        into = f">|{quote(path) if path else f'/proc/self/fd/{descriptor}'} 2>&-"
        trap = f"{{ {dump}; }} {into}"
        # It keeps the status of the command. All stands in one line, which bash has read before the
        # command runs, and the command in `eval`, where a quote that is open takes nothing of this.
        status = 'case $_toolbus_status in 0) ;; *) (builtin exit "$_toolbus_status");; esac'
        end = f"{{ _toolbus_status=$?; {dump}; {status}; }} {into}"
        try:
            yield StateDump(f'trap {quote(trap)} EXIT; eval "shift; $1\n"; {end}', descriptor)
        finally:
            os.close(descriptor)
            with suppress(OSError):  # there is none, or the command has removed it
                os.unlink(path)

    def save(self, asker: Asker, dump: StateDump) -> list[str]:
        """Save what a command dumped at its end.

        Returns:
            What is not saved, and why.
        """
        data = os.pread(dump.descriptor, 2 * _MAX_BYTES, 0)
        directory, mark, variables = data.partition(b"\n\0")
        if not mark or not directory.startswith(b"/"):  # it ended without its trap, or nowhere
            text = "the directory and the exported variables are as before this command: it ended"
            return [f"{text} killed, in `exec`, by `exit` with a trap of its own, or in no folder"]
        where = os.fsdecode(directory)
        is_whole = variables.endswith(b"\0") and len(variables) <= _MAX_BYTES
        with self._lock:
            session = self._session(asker)
            session.state = self._state(where, variables) if is_whole else session.state.at(where)
        return [] if is_whole else [f"variables are not kept: they have over {_MAX_BYTES:,} bytes"]

    def _state(self, directory: str, variables: bytes) -> ShellState:
        found = {
            os.fsdecode(exported["name"]): os.fsdecode(_value_of(exported["value"]))
            for exported in _EXPORTED.finditer(variables)
        }
        first = self._first.variables
        # Names that no variable of bash has are passed on by it, and cannot be changed in it.
        found |= {name: first[name] for name in first if not _NAME.fullmatch(name)}
        for name in _UNSAVED:
            found.pop(name, None)
        if self._shows is not None:
            for name in _OF_SANDBOX:
                found.pop(name, None)
            found |= {name: first[name] for name in _OF_SANDBOX if name in first}
        names = (found.keys() | first.keys()) - _UNSAVED
        changed = frozenset(name for name in names if found.get(name) != first.get(name))
        return ShellState(directory, found, changed)

    def _session(self, asker: Asker) -> _Session:
        self._by_asker[asker] = session = self._by_asker.get(asker) or _Session(self._first)
        return session


def _value_of(quoted: bytes) -> bytes:
    """Return what bash reads of a value as `export -p` writes it."""
    if quoted.startswith(b"$"):
        return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), quoted[2:-1])
    return _ESCAPE.sub(lambda found: found[1], quoted[1:-1])
