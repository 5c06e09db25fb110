"""Exit codes and error texts of commands and services: what failed and what to do next.

Pure: it prints nothing, so that services use it without the command line. Exit codes are defined
only here.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import TypeVar

from toolbus.auth.participant_names import MAX_NAME_CHARS
from toolbus.errors import Cancelled, InvalidArguments, RoomException
from toolbus.untrusted_text import SHOWN_CHARS, one_line, printable

__all__ = [
    "UNAUTHORIZED",
    "CallTarget",
    "ExitCode",
    "Terminated",
    "UsageError",
    "allow_step",
    "certificate_step",
    "exit_code",
    "failure_lines",
    "further_values",
    "grant_command",
    "with_step",
]


class ExitCode(IntEnum):
    """The exit codes of all commands, for scripts."""

    OK = 0
    TOOL_FAILED = 1
    """The tool ran and failed."""
    USAGE = 2
    """A flag, a setting or an argument is wrong."""
    REFUSED = 3
    """A token, grant, approval or pin does not permit it."""
    NOT_FOUND = 4
    """The toolkit or tool does not exist, or is not visible to this participant."""
    CANCELLED = 5
    """The deadline passed, or the caller cancelled."""
    UNAVAILABLE = 6
    """No host or server was available, or its connection was lost."""
    READER_CLOSED = 141
    """The reader of stdout closed it: 128 + SIGPIPE."""
    TERMINATED = 143
    """SIGTERM ended the command: 128 + SIGTERM."""


class UsageError(InvalidArguments):
    """A flag, a setting or an argument is wrong; the message says how to correct it."""

    next_step = ""
    """Replaces the general next step; any error class may define its own."""


_Error = TypeVar("_Error", bound=RoomException)


def with_step(error: _Error, next_step: str) -> _Error:
    """Give an error a next step of its own, in place of the general one; return the error."""
    error.next_step = next_step  # type: ignore[attr-defined]  # see `failure_lines`
    return error


class Terminated(Cancelled):
    """SIGTERM has ended the command."""


@dataclass(frozen=True, slots=True)
class CallTarget:
    """The target of a call, as named in next steps; "" and None stand for what was not given."""

    toolkit: str = ""
    tool: str = ""
    """The tool's name without the toolkit."""
    participant: str | None = None
    """The owner of the toolkit, if given."""
    principal: str | None = None
    """The participant on whose behalf the call is made."""
    timeout_s: float | None = None

    @property
    def full_name(self) -> str:
        """The tool as `toolkit.tool`."""
        return f"{self.toolkit}.{self.tool}"

    @property
    def show_command(self) -> str:
        """The command that shows the tool; the toolkit if no tool is given."""
        words = ["toolbus", "tools", self.toolkit or "TOOLKIT"]
        if self.tool:
            words[-1] = self.full_name
        if self.participant:
            words += ["--participant", self.participant]
        return shlex.join(words)


_EXIT_CODES: dict[str, ExitCode] = {
    "tool_failed": ExitCode.TOOL_FAILED,
    "invalid_result": ExitCode.TOOL_FAILED,
    "internal": ExitCode.TOOL_FAILED,
    "invalid_arguments": ExitCode.USAGE,
    "permission_denied": ExitCode.REFUSED,
    "already_exists": ExitCode.REFUSED,
    "definition_changed": ExitCode.REFUSED,
    "definition_conflict": ExitCode.REFUSED,
    "loop_detected": ExitCode.REFUSED,
    "duplicate_call_id": ExitCode.REFUSED,
    "approval_denied": ExitCode.REFUSED,
    "approval_expired": ExitCode.REFUSED,
    "tool_inactive": ExitCode.REFUSED,
    "not_found": ExitCode.NOT_FOUND,
    "deadline_exceeded": ExitCode.CANCELLED,
    "cancelled": ExitCode.CANCELLED,
    "no_host": ExitCode.UNAVAILABLE,
    "overloaded": ExitCode.UNAVAILABLE,
    "quota_exceeded": ExitCode.UNAVAILABLE,
    "unavailable": ExitCode.UNAVAILABLE,
    "host_lost": ExitCode.UNAVAILABLE,
    "connection_lost": ExitCode.UNAVAILABLE,
    "stream_broken": ExitCode.UNAVAILABLE,
    "stream_stalled": ExitCode.UNAVAILABLE,
}

_NEXT_STEPS = MappingProxyType(
    {
        "invalid_result": "tell the operator of the host: the result cannot be encoded, or it "
        "violates the tool's output schema",
        "already_exists": "use another name, host the toolkit as private, or stop the host that "
        "owns the name; `toolbus tools` shows its owner",
        "definition_conflict": "stop the hosts of the other definition, or host this one with "
        "supersede=True (--supersede); `toolbus tools` shows the definitions of a toolkit",
        "loop_detected": "find the tools that call each other in a loop",
        "no_host": "start a host of this toolkit, or retry when its host is connected again",
        "overloaded": "retry in a moment, or start another host of this toolkit",
        "quota_exceeded": "retry when fewer calls are in flight",
        "too_large": "send or request less data in one call",
    }
)
_NO_SERVER = (
    "is --url (TOOLBUS_URL) correct? `toolbus doctor` with the same options finds the problem"
)
_CERTIFICATE_STEP = (
    "set SSL_CERT_FILE to a file with the certificate of its authority, and use a host name that "
    "the certificate contains"
)
# OpenSSL says the same of an authority that is not known here and of a chain that is not sent.
_CHAIN_STEP = (
    "set SSL_CERT_FILE to a file with the certificate of its authority; or, if that is known here, "
    "let the server send its chain: in the file of --tls-cert the certificates of intermediate "
    "authorities follow its own"
)
_NO_ISSUER = ("unable to get local issuer", "unable to get issuer", "unable to verify the first")


def certificate_step(reason: str) -> str:
    """Return what to do about a certificate that is not trusted for a reason of OpenSSL."""
    return _CHAIN_STEP if reason.startswith(_NO_ISSUER) else _CERTIFICATE_STEP


_KEYS_STEP = "sign it with --keys FILE where the server has keys of its own"
_WRONG_URL = "set --url (TOOLBUS_URL) to a toolbus server, such as ws://HOST:7717"
_MAY_HAVE_RUN = "the tool may have run: check its effects before you retry"


def _after_invalid_arguments(error: RoomException, target: CallTarget) -> str:
    if "alias" in error.details:
        return (
            "`toolbus room participants` lists the participants, with the aliases of their issuers"
        )
    return f"`{target.show_command}` shows its parameters" if target.tool else ""


_AFTER_CLOSE = MappingProxyType(
    {
        4401: "create a token with `toolbus token create`; a token file is read again before the "
        "token expires",
        4409: "give each connection with the same name its own instance: --instance or "
        "TOOLBUS_INSTANCE (default: random)",
        4440: "ask the administrator of this room",
    }
)
UNAUTHORIZED = 401
"""The status with which a server refuses a token."""
_REPLACED = 409


def grant_command(grant: str) -> str:
    """Return the command that creates a token with a grant, written as `--grant` takes it."""
    return f"toolbus token create --name NAME --grant {shlex.quote(grant)}"


def _command_for_grant(grant: object) -> str | None:
    """Return the command for the grant that an error names; None if there is no such grant."""
    # Grants bring in pydantic, and this module is imported to list commands.
    from toolbus.auth.grants import GRANTS

    if not isinstance(grant, str) or not grant.isprintable():
        return None
    name, _, value = grant.partition("=")
    if name not in GRANTS or (value and not GRANTS[name]) or len(value) > MAX_NAME_CHARS:
        return None
    if GRANTS[name] and not value:  # nothing of it is granted, whatever its values
        return grant_command(f"{name}=*")
    return grant_command(grant)


def allow_step(target: CallTarget, lacks: object) -> str:
    """Return the command for a token of the caller, or of the principal, that covers the target."""
    tools = shlex.quote(target.toolkit)
    use = "see and call its tools"
    if target.tool:
        tools = shlex.quote(target.full_name)
        use = "call this tool"
    name = "NAME"
    if lacks == "principal" and target.principal is not None:
        name = shlex.quote(target.principal)
    return (
        f"`toolbus token create --name {name} --allow {tools}` creates one that may {use}: give it "
        f"all grants that the token had, and {_KEYS_STEP}"
    )


def _after_permission_denied(error: RoomException, target: CallTarget) -> str:
    if "on_behalf_of" in error.details:
        return (
            "--on-behalf-of (on_behalf_of=) must be a name as `toolbus room participants` lists it"
        )
    if "source" in error.details:  # decided by permissions, which no token changes
        return "whoever hosts the toolkit decides by its policy; --assess shows what the tool says"
    if isinstance(flag := error.details.get("host_flag"), str):
        return f"whoever hosts the toolkit can allow it: {shlex.quote(flag)} of `toolbus host`"
    lacks = error.details.get("lacks")  # only of a tool, where `--allow` grants what is missing
    command = _command_for_grant(error.details.get("grant"))
    if command is not None and not lacks:
        doctor = "`toolbus doctor` with the same options shows the grants of your token"
        return f"create a token with this grant: `{command}`; {doctor}"
    create = f"`toolbus token create` creates a new one: {_KEYS_STEP}"
    if error.details.get("status") == UNAUTHORIZED:
        doctor = "`toolbus doctor` with the same options"
        return f"{doctor} shows what is wrong with the token; {create}"
    is_join_error = not {"status", "close_code"}.isdisjoint(error.details)
    # A tool that forwards calls is refused for the tool that it was to reach.
    is_other_tool = bool(lacks and target.tool and target.full_name not in error.message)
    is_for_target = target.toolkit and not is_join_error and not is_other_tool
    if is_for_target and (lacks == "principal" or not target.principal):
        create = allow_step(target, lacks)
    return f"`toolbus doctor` with the same options shows the grants of the token; {create}"


def _after_unavailable(error: RoomException, _: CallTarget) -> str:
    """Distinguish an unreachable server from a server that cannot reach something itself."""
    if "right_url" in error.details:
        return f"use --url {error.details['right_url']} (TOOLBUS_URL)"
    if "certificate" in error.details:
        return certificate_step(str(error.details["certificate"]))
    if "proxy" in error.details:
        return "correct the proxy's variable (ALL_PROXY), or name the server's host in NO_PROXY"
    if "url" in error.details:
        return _NO_SERVER if error.retryable else _WRONG_URL
    if not error.retryable:
        return "`toolbus doctor` checks the connection to the server"
    return "retry in a moment; `toolbus doctor` checks the connection to the server"


def _after_definition_changed(_: RoomException, target: CallTarget) -> str:
    command = CallTarget(target.toolkit, participant=target.participant).show_command
    return f"`{command}` shows the current digest"


def _after_not_found(error: RoomException, target: CallTarget) -> str:
    if error.message.startswith("/tools/"):  # a toolkit that a question asks to be built
        owner = shlex.quote(target.participant or "OWNER")
        return f"`toolbus builders {owner}` lists what can be built"
    if target.participant:
        owner = shlex.quote(target.participant)
        return f"`toolbus tools --participant {owner}` lists the toolkits of this owner"
    return (
        "`toolbus tools` lists the toolkits that you can see, with their owners; to call a "
        "private toolkit of another owner, add --participant OWNER"
    )


def _after_deadline_exceeded(error: RoomException, target: CallTarget) -> str:
    if error.executed == "yes":
        return (
            "the tool sets this limit itself, and --timeout does not change it: request less work"
        )
    if target.timeout_s is None:
        return ""
    return f"allow more time than {target.timeout_s:g} s with --timeout"


def _after_approval_expired(error: RoomException, _: CallTarget) -> str:
    if error.details.get("hold") is None:  # nobody was asked
        return "let the call wait for a person: --approval-timeout (approval_timeout_s=)"
    decide = "answer" if error.details.get("kind") == "answer" else "approve"
    return f"repeat the call, and let somebody {decide} it in time: `toolbus approvals`"


def _after_tool_failed(error: RoomException, target: CallTarget) -> str:
    """Name the log or trace with more information.

    Class and code are untrusted text, so they are shown only if they are identifiers.
    """
    cause, code = (error.details.get(name) for name in ("cause", "code"))
    refused = error.details.get("refused")
    if isinstance(refused, dict):
        # A nested call is made for the principal of its parent, else for the parent's caller.
        is_own = refused.get("lacks") == "principal" and target.principal is None
        who = "you have no grant for it: you need" if is_own else "that participant needs"
        return (
            f"{who} a token with the grant: `toolbus token create --allow TOOL`; `toolbus trace` "
            "shows the refused call"
        )
    # Of `context.ask`, or of a nested call: the error does not say which.
    if code == "approval_denied":
        return (
            "a person refused what the tool asked, or a call that it made: `toolbus trace` shows it"
        )
    if code == "approval_expired":
        return (
            "let somebody answer what the tool asks, or approve what it calls, in time: "
            "`toolbus approvals`, --approval-timeout"
        )
    if isinstance(code, str) and code.isidentifier():
        return (
            f"a nested call of the tool failed with {code[:64]}: `toolbus trace` shows which call"
        )
    if isinstance(cause, str) and cause.isidentifier():
        return f"the host has logged this {cause[:64]}: ask its operator"
    if error.retryable:
        return "the tool reports that a later retry may succeed"
    return "this message comes from the tool: change the arguments, or ask the operator of its host"


_NAMED_STEPS: MappingProxyType[str, Callable[[RoomException, CallTarget], str]] = MappingProxyType(
    {
        "invalid_arguments": _after_invalid_arguments,
        "permission_denied": _after_permission_denied,
        "definition_changed": _after_definition_changed,
        "not_found": _after_not_found,
        "deadline_exceeded": _after_deadline_exceeded,
        "approval_expired": _after_approval_expired,
        "tool_failed": _after_tool_failed,
        "unavailable": _after_unavailable,
    }
)


def exit_code(error: RoomException) -> ExitCode:
    """Return the exit code of an error; an unknown error code gives `TOOL_FAILED`."""
    if isinstance(error, Terminated):
        return ExitCode.TERMINATED
    if error.code == "too_large" and error.executed == "no":
        return ExitCode.USAGE
    return _EXIT_CODES.get(error.code, ExitCode.TOOL_FAILED)


def _after_close(error: RoomException) -> str | None:
    """Return the next step after a connection was closed and will not be reopened."""
    if error.code == "tool_failed":  # its details are the tool's, such as the status of an API
        return None
    code, status = (error.details.get(name) for name in ("close_code", "status"))
    if status == _REPLACED:
        code = 4409
    return _AFTER_CLOSE.get(code) if isinstance(code, int) else None


def _next_step(error: RoomException, target: CallTarget) -> str:
    own: str | None = getattr(error, "next_step", None)
    if own is not None:
        return own
    if (closed := _after_close(error)) is not None:
        return closed
    if error.executed == "maybe":
        return _MAY_HAVE_RUN
    if error.code == "overloaded" and error.retry_after_s:
        return f"retry in {math.ceil(error.retry_after_s)} s"
    if named := _NAMED_STEPS.get(error.code):
        return named(error, target)
    return _NEXT_STEPS.get(error.code, "")


def further_values(error: RoomException) -> list[str]:
    """Return the invalid values of an error but the first, which its message names.

    Its details come from another participant: what is not as ERR-6 says is left out.
    """
    named = error.details.get("all")
    if not isinstance(error, InvalidArguments) or not isinstance(named, list):
        return []
    lines: list[str] = []
    for entry in named[1:32]:
        match entry:
            case {"path": str(path), "message": str(message)}:
                lines.append(one_line(f"{path}: {message}" if path else message, 450))
    return lines


def failure_lines(
    error: RoomException, target: CallTarget | None = None, *, local: bool = False
) -> list[str]:
    """Return the text that tells a user what failed, whether the tool ran, and what to do next.

    Where no room was involved (`local`), code and `executed` are left out.
    """
    # Further lines are indented, so that untrusted text cannot imitate our own lines.
    text = printable(error.message, 4_096).replace("\n", "\n    ")
    if not local:
        text = f"{one_line(error.code, SHOWN_CHARS)}: {text} (executed: {error.executed})"
    lines = [f"toolbus: {text}", *(f"  also: {value}" for value in further_values(error))]
    if step := one_line(_next_step(error, target or CallTarget())):
        lines.append(f"  next: {step}")
    return lines
