"""How a command or a service ends where it fails: its exit code, its words, what to do next.

Pure: it prints nothing, so that a program may say the same as the commands without what they are
made of. The table here is the only place that knows exit codes.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from toolbus.errors import InvalidArguments, RoomException

__all__ = [
    "ExitCode",
    "Subject",
    "UsageMistake",
    "exit_code",
    "failure_lines",
    "printable",
]


class ExitCode(IntEnum):
    """What a script can tell from a command's end."""

    OK = 0
    TOOL_FAILED = 1
    """The tool ran and failed."""
    USAGE = 2
    """What was typed, set or sent is wrong."""
    REFUSED = 3
    """The token, a grant, an approval or a pin does not allow it."""
    NOT_FOUND = 4
    """No such toolkit or tool, or none that this participant may know of."""
    GIVEN_UP = 5
    """The deadline passed, or the caller gave up."""
    AWAY = 6
    """Nobody was there to do it, or they were lost."""


class UsageMistake(InvalidArguments):
    """Something that was typed or set is wrong; the message says what to do about it."""

    next_step = ""
    """Said in place of the general next step; any error may have one of its own."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What was asked for, as far as a next step can name it; "" and None where it was not said."""

    toolkit: str = ""
    tool: str = ""
    """The tool's name alone."""
    participant: str | None = None
    """The owner that was named."""
    principal: str | None = None
    """For whom it was asked."""
    timeout_s: float | None = None

    @property
    def method(self) -> str:
        """The tool as it is written."""
        return shlex.quote(f"{self.toolkit}.{self.tool}")

    @property
    def look(self) -> str:
        """The command that shows the toolkit, or its tool where one was named."""
        name = self.method if self.tool else shlex.quote(self.toolkit or "TOOLKIT")
        owner = f" --participant {shlex.quote(self.participant)}" if self.participant else ""
        return f"toolbus tools {name}{owner}"


_EXIT_CODES: dict[str, ExitCode] = {
    "tool_failed": ExitCode.TOOL_FAILED,
    "invalid_result": ExitCode.TOOL_FAILED,
    "internal": ExitCode.TOOL_FAILED,
    "invalid_arguments": ExitCode.USAGE,
    "permission_denied": ExitCode.REFUSED,
    "already_exists": ExitCode.REFUSED,
    "definition_changed": ExitCode.REFUSED,
    "loop_detected": ExitCode.REFUSED,
    "duplicate_call_id": ExitCode.REFUSED,
    "approval_denied": ExitCode.REFUSED,
    "approval_expired": ExitCode.REFUSED,
    "tool_inactive": ExitCode.REFUSED,
    "not_found": ExitCode.NOT_FOUND,
    "deadline_exceeded": ExitCode.GIVEN_UP,
    "cancelled": ExitCode.GIVEN_UP,
    "no_host": ExitCode.AWAY,
    "overloaded": ExitCode.AWAY,
    "quota_exceeded": ExitCode.AWAY,
    "unavailable": ExitCode.AWAY,
    "host_lost": ExitCode.AWAY,
    "connection_lost": ExitCode.AWAY,
    "stream_broken": ExitCode.AWAY,
    "stream_stalled": ExitCode.AWAY,
}

_NEXT_STEPS = MappingProxyType(
    {
        "invalid_result": "tell whoever runs the host: what the tool returned cannot be sent, or "
        "is not what it promises",
        "already_exists": "give yours another name, host it as a private one, or stop whoever has "
        "the name; `toolbus tools` shows who that is",
        "loop_detected": "look for tools that call each other in a circle",
        "no_host": "start its host again, or try once more when it is back",
        "overloaded": "try again in a moment, or start another host of it",
        "quota_exceeded": "try again when fewer calls are under way",
        "too_large": "send or ask for less at a time",
    }
)
_NO_SERVER = (
    "is the server running, and is --url (TOOLBUS_URL) right? `toolbus doctor` looks into it"
)
_MAY_HAVE_RUN = "it may have run: look at its effect before you try again"


def _after_bad_arguments(_: RoomException, subject: Subject) -> str:
    return f"`{subject.look}` shows what it takes" if subject.tool else ""


_AFTER_CLOSE = MappingProxyType(
    {
        4401: "`toolbus token create` makes a token; one in a file is read again before it ends",
        4409: "each connection of one name needs an instance of its own: "
        "--instance or TOOLBUS_INSTANCE, random unless set",
        4440: "ask whoever looks after this room",
    }
)
_NOT_KNOWN, _REPLACED = 401, 409


def _after_refusal(error: RoomException, subject: Subject) -> str:
    if "on_behalf_of" in error.details:
        return "a call is made on behalf of one who is in the room, and alone in having that name"
    makes = "`toolbus token create` makes another"
    if error.details.get("status") == _NOT_KNOWN:
        return f"`toolbus doctor` looks into what is wrong with it; {makes}"
    is_of_door = not {"status", "close_code"}.isdisjoint(error.details)
    about_tool = subject.tool and not subject.principal and not is_of_door
    if about_tool:
        makes = f"`toolbus token create --name NAME --allow {subject.method}` makes one that may"
    return f"`toolbus doctor` shows what this token may do; {makes}"


def _after_absence(error: RoomException, _: Subject) -> str:
    """Tell a server that was not reached from one that says what it cannot reach itself."""
    if "url" in error.details:
        return _NO_SERVER
    if not error.retryable:
        return "`toolbus doctor` looks at the way to the server"
    return "try again in a moment; `toolbus doctor` looks at the way to the server"


def _after_change(_: RoomException, subject: Subject) -> str:
    look = Subject(subject.toolkit, participant=subject.participant).look
    return f"`{look}` shows the digest that is served now"


def _after_nothing_found(_: RoomException, subject: Subject) -> str:
    if subject.participant:
        owner = shlex.quote(subject.participant)
        return f"`toolbus tools --participant {owner}` lists what you can see of theirs"
    return (
        "`toolbus tools` lists what you can see, each with its owner; another's private "
        "toolkit is called with --participant OWNER"
    )


def _after_deadline(error: RoomException, subject: Subject) -> str:
    if error.executed == "yes":
        return "the tool sets this limit itself, and --timeout does not change it: ask for less"
    if subject.timeout_s is None:
        return ""
    return f"give it more time than {subject.timeout_s:g} s with --timeout"


def _after_failure(error: RoomException, _: Subject) -> str:
    """Say where more is known: a class means that the host logged it, unless a call was its cause.

    Class and code are a stranger's words, so only what can be a name is repeated.
    """
    cause, code = (error.details.get(name) for name in ("cause", "code"))
    if isinstance(code, str) and code.isidentifier():
        return (
            f"a call that the tool made itself ended with {code[:64]}: `toolbus trace` shows which"
        )
    if isinstance(cause, str) and cause.isidentifier():
        return f"the log of its host says more of this {cause[:64]}: ask whoever runs it"
    if error.retryable:
        return "the tool says that the same call may succeed later"
    return "these are the tool's own words: ask for something else, or ask whoever runs it"


_NAMED_STEPS: MappingProxyType[str, Callable[[RoomException, Subject], str]] = MappingProxyType(
    {
        "invalid_arguments": _after_bad_arguments,
        "permission_denied": _after_refusal,
        "definition_changed": _after_change,
        "not_found": _after_nothing_found,
        "deadline_exceeded": _after_deadline,
        "tool_failed": _after_failure,
        "unavailable": _after_absence,
    }
)


def exit_code(error: RoomException) -> ExitCode:
    """Return the exit code of an error; one that this release does not know is `TOOL_FAILED`."""
    if error.code == "too_large":
        return ExitCode.USAGE if error.executed == "no" else ExitCode.TOOL_FAILED
    return _EXIT_CODES.get(error.code, ExitCode.TOOL_FAILED)


def printable(text: str) -> str:
    """Make a stranger's words safe for a terminal: control characters are shown, not obeyed."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )


def _after_close(error: RoomException) -> str | None:
    """Say what helps against the end of a connection that none follows."""
    code, status = (error.details.get(name) for name in ("close_code", "status"))
    if status == _REPLACED:
        code = 4409
    return _AFTER_CLOSE.get(code) if isinstance(code, int) else None


def _next_step(error: RoomException, subject: Subject) -> str:
    own: str | None = getattr(error, "next_step", None)
    if own is not None:
        return own
    if (closed := _after_close(error)) is not None:
        return closed
    if error.executed == "maybe":
        return _MAY_HAVE_RUN
    named = _NAMED_STEPS.get(error.code)
    return _NEXT_STEPS.get(error.code, "") if named is None else named(error, subject)


def failure_lines(
    error: RoomException, subject: Subject | None = None, *, local: bool = False
) -> list[str]:
    """Say for people what went wrong, whether the tool ran, and what to do next.

    Args:
        error: What went wrong.
        subject: What was asked for.
        local: No room was involved, so code and `executed` are left out.
    """
    # Further lines are set in, so that no stranger's words can pass for ours.
    words = printable(error.message).replace("\n", "\n    ")
    if not local:
        words = f"{error.code}: {words} (executed: {error.executed})"
    step = printable(_next_step(error, subject or Subject())).replace("\n", "\\n")
    return [f"toolbus: {words}", *([f"  next: {step}"] if step else [])]
