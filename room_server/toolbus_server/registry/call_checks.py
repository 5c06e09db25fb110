"""What a request has to pass: its options, grants, the principal's grants, pin and affinity.

Pure: each check raises the error that the caller gets. A cursor is text that only the server has to
understand.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from toolbus.errors import DefinitionChanged, InvalidArguments, NoHost, NotFound, PermissionDenied
from toolbus.permissions.plain import MAX_MATCHES, MAX_MATCHES_BYTES
from toolbus.wire import BadBody, ToolManifest, pack_body, unpack_body
from toolbus_server.registry.models import Generation, Participant, RegisteredToolkit

__all__ = [
    "CALL_OPTION_TYPES",
    "MAX_PAGE",
    "MAX_PAGE_BYTES",
    "STREAM_OPTION_TYPES",
    "affinity_of",
    "bad_option",
    "check_grant",
    "check_options",
    "check_patterns",
    "check_pin",
    "check_principal",
    "cursor_text",
    "need_grant",
    "no_host_error",
    "page_limit",
    "read_cursor",
    "read_option",
]

MAX_PAGE = 100
"""Items of one page of a list: all are packed in one step (PROTOCOL.md, REG-13)."""
MAX_PAGE_BYTES = 256 * 1024
"""A page with more bytes than this gets no further item (PROTOCOL.md, REG-13)."""
STREAM_OPTION_TYPES: Mapping[str, type] = {
    "credit_chunks": int,
    "credit_bytes": int,
    "idle_ms": int,
    "input": bool,
    "progress": bool,
}
"""Options of a call that concern its streams."""
CALL_OPTION_TYPES: Mapping[str, type] = {
    "participant": str,
    "parent": int,
    "forward": bool,
    "on_behalf_of": str,
    "pin": str,
    "attempt": int,
    "caller_context": bytes,
    "affinity": str,
    "purpose": str,
    "approval_ms": int,
    **STREAM_OPTION_TYPES,
}
"""Options of a call, with the types of their values."""
_MAX_AFFINITY_CHARS = 128
"""Each call hashes it, in the event loop of the server (PROTOCOL.md, CALL-23)."""
_NO_HOST_RETRY_S = 0.2


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse an option of a call whose value has another type. Raises InvalidArguments."""
    for name, value in options.items():
        expected = CALL_OPTION_TYPES.get(name)
        if expected is not None and type(value) is not expected:
            raise bad_option(name, f"must be {expected.__name__}")


def check_patterns(patterns: Sequence[Any]) -> None:
    """Refuse patterns of an `Assess` beyond its limits. Raises InvalidArguments."""
    if not all(type(pattern) is str and pattern for pattern in patterns):
        raise bad_option("patterns", "must be texts that are not empty")
    size = sum(len(pattern.encode()) for pattern in patterns)
    if len(patterns) > MAX_MATCHES or size > MAX_MATCHES_BYTES:
        raise bad_option(
            "patterns", f"must be at most {MAX_MATCHES}, of {MAX_MATCHES_BYTES} bytes in all"
        )


def need_grant(has_grant: bool, action: str, grant: str) -> None:
    """Refuse an action without the grant for it. Raises PermissionDenied."""
    if not has_grant:
        raise PermissionDenied(f"no grant to {action} ({grant})", details={"grant": grant})


def bad_option(name: str, message: str, **more: Any) -> InvalidArguments:
    """Make the error for an invalid option.

    Args:
        name: The path of the option.
        message: The rule, beginning with "must", or the fault.
        more: Further fields of the error's details.
    """
    details = {"path": f"/{name}", "message": message, **more}
    return InvalidArguments(f"{name} {message}", details=details)


def read_option(options: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return an option, or None if it is missing. Raises InvalidArguments for another type."""
    value = options.get(name)
    if value is not None and type(value) is not kind:
        raise bad_option(name, f"must be {kind.__name__}")
    return value


def page_limit(options: dict[str, Any], most: int = MAX_PAGE) -> int:
    """Return how many items a page may have, as `limit` asks. Raises InvalidArguments."""
    limit = read_option(options, "limit", int)
    return most if limit is None else max(1, min(int(limit), most))


def cursor_text(position: Sequence[Any]) -> str:
    """Encode the position at which a page ended."""
    return base64.urlsafe_b64encode(pack_body(list(position))).decode()


def read_cursor(options: dict[str, Any], kinds: Sequence[type]) -> Any:
    """Return the position after which the next page begins, None for the first page.

    `kinds` are the types of its parts. Raises InvalidArguments if `cursor_text` did not make it.
    """
    text = read_option(options, "cursor", str)
    if text is None:
        return None
    try:
        position = unpack_body(base64.urlsafe_b64decode(text))
    except (binascii.Error, ValueError, BadBody) as error:
        raise bad_option("cursor", "was not made by this server") from error
    if type(position) is not list or [type(part) for part in position] != list(kinds):
        raise bad_option("cursor", "was not made by this server")
    return tuple(position)


def no_host_error(toolkit: RegisteredToolkit) -> NoHost:
    """Make the error for a toolkit without a host; it has the time after which to try again."""
    return NoHost(f"{toolkit.name} has no host now", retry_after_s=_NO_HOST_RETRY_S)


def check_grant(caller: Participant, toolkit: RegisteredToolkit, name: str) -> ToolManifest:
    """Return a tool that the caller's grants cover.

    Raises:
        NotFound: The toolkit has no such tool.
        PermissionDenied: The caller's grants do not cover it.
        NoHost: The name is reserved, and its tools are not known until its host is back.
    """
    tool = toolkit.serving.definition.tool(name)
    if tool is None:
        if toolkit.serving.definition.is_name_only and caller.may_call(toolkit.name, name):
            raise no_host_error(toolkit)
        raise NotFound(f"tool {toolkit.name}.{name[:64]} not found")
    if not caller.may_call(toolkit.name, name):
        details = {"grant": "agents.call", "lacks": "caller"}
        raise PermissionDenied(f"no grant to call {toolkit.name}.{name}", details=details)
    return tool


def affinity_of(tool: ToolManifest, caller: Participant, given: str | None) -> str | None:
    """Return the key that keeps related calls at one host; None if any host will do.

    Args:
        tool: Has the affinity: `caller`, or the name of an argument.
        caller: The calling participant.
        given: The key that the caller derived from that argument; the server reads no arguments.

    Raises:
        InvalidArguments: It is missing or too long; `details.argument` names the argument.
    """
    if tool.affinity == "none":
        return None
    if tool.affinity == "caller":
        return "\0".join(caller.identity)
    if given is None or not 0 < len(given) <= _MAX_AFFINITY_CHARS:
        message = f"is 1 to {_MAX_AFFINITY_CHARS} characters, derived from argument {tool.affinity}"
        raise bad_option("affinity", message, argument=tool.affinity)
    return given


def check_principal(
    authorities: Sequence[Participant], toolkit: RegisteredToolkit, tool: str
) -> None:
    """Refuse a call on behalf of a principal that may not call the tool itself.

    So no host can be used as a confused deputy. Of several connections of the principal, each must
    have the grant. Raises PermissionDenied.
    """
    lacking = [
        participant for participant in authorities if not participant.may_call(toolkit.name, tool)
    ]
    if lacking:
        who = lacking[0].full_name
        if len(lacking) < len(authorities):
            who = f"{len(lacking)} of {len(authorities)} connections of {who}"
        message = f"{who} has no grant for {toolkit.name}.{tool}"
        raise PermissionDenied(message, details={"grant": "agents.call", "lacks": "principal"})


def check_pin(toolkit: RegisteredToolkit, pin: str, generation: Generation | None = None) -> None:
    """Refuse a call that is pinned to another definition than the one that serves, or `generation`.

    Raises DefinitionChanged.
    """
    digest = (generation or toolkit.serving).definition.digest
    if pin != digest:
        raise DefinitionChanged(
            f"toolkit {toolkit.name} is not the one you pinned", details={"digest": digest}
        )
