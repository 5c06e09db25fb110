"""What a call has to pass before it reaches a host: grants, the principal's grants, pin, affinity.

Pure: each check raises the error that the caller gets.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolbus.errors import DefinitionChanged, NoHost, NotFound, PermissionDenied
from toolbus.wire import ToolManifest
from toolbus_server.registry.models import Generation, Participant, RegisteredToolkit
from toolbus_server.registry.request_options import bad_option

__all__ = ["affinity_of", "check_grant", "check_pin", "check_principal", "no_host_error"]

_MAX_AFFINITY_CHARS = 128
_NO_HOST_RETRY_S = 0.2


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
