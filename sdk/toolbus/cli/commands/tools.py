"""`toolbus tools` lists toolkits and describes their tools; `toolbus builders` lists what is built.

Descriptions are untrusted text: control characters are escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from toolbus.auth.participant_names import means
from toolbus.chunks.json_values import cut, shown
from toolbus.cli.columns import reserve_lines, show_columns, terminal_columns, wrapped
from toolbus.cli.completion import complete_name, complete_owner
from toolbus.cli.error_report import reporting
from toolbus.cli.room_options import CommandRoom, Locked, RoomOptions, in_room, joins_a_room
from toolbus.cli.suggestions import find_toolkit, suggest_tool
from toolbus.diagnostics.exit_codes import CallTarget, UsageError, grant_command, with_step
from toolbus.errors import NotFound
from toolbus.room.participants import BuilderInfo
from toolbus.room.toolkit_proxy import ToolkitInfo, ToolkitProxy
from toolbus.schemas.text import MAX_STEPS, SchemaTree, node_lines
from toolbus.tools.omission import entries_in
from toolbus.untrusted_text import json_text, one_line
from toolbus.wire import ToolkitManifest, ToolManifest

__all__ = ["builders", "tools"]

_COLUMNS = ("toolkit", "tools", "owner", "hosts", "visible to", "description")
_LEFT_OUT_COLUMNS = ("state", "tool", "reason")
_TAKES = {"attachment": "an attachment (--attach FILE)", "input": "an input (--input FILE)"}
# Others write the schemas: 1,000 tools of `MAX_STEPS` each would keep a reader waiting.
_MAX_TOTAL_STEPS = 40_000
_MIN_STEPS = 200


@joins_a_room
def tools(
    options: RoomOptions,
    toolkit: Annotated[
        str | None,
        typer.Argument(
            help="Describe this toolkit, or this toolkit.tool.", autocompletion=complete_name
        ),
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="List only toolkits with this text in a name or description.")
    ] = None,
    participant: Annotated[
        str | None,
        typer.Option(help="Only toolkits of this owner.", autocompletion=complete_owner),
    ] = None,
    left_out: Annotated[
        bool,
        typer.Option(
            "--left-out",
            help="Of this toolkit, list tools that are not hosted and checks that are not made.",
        ),
    ] = False,
    locked: Locked = None,
) -> None:
    """List toolkits, or describe the tools of one."""
    if toolkit is None:
        if left_out:
            raise UsageError("--left-out needs the name of a toolkit")
        found = in_room(
            options, lambda room: _list_toolkits(room, search, participant), locked=locked
        )
        if options.as_json:
            typer.echo(json_text([asdict(info) for info in found]))
        elif found:
            _show_list(found)
        else:
            text = f"no visible toolkit in room {options.resolve_room().room}"
            step = ": `toolbus host` hosts one"
            if search or participant:
                step = " matches: `toolbus tools` lists all of them"
            typer.echo(f"{text}{step}", err=True)
        return
    name, _, tool = toolkit.partition(".")
    target = CallTarget(name, "" if left_out else tool, participant)
    with reporting(as_json=options.as_json, target=target):
        proxy = in_room(options, lambda room: _find(room, target), locked=locked)
    if left_out:
        _show_left_out(proxy, as_json=options.as_json)
        return
    chosen = [proxy.tool(tool)] if tool else list(proxy.manifest.tools)
    if options.as_json:
        typer.echo(json_text(_facts(proxy, chosen)))
    else:
        _show_lines(_toolkit_lines(proxy, chosen, is_nested=bool(tool)))


async def _list_toolkits(
    room: CommandRoom, search: str | None, participant: str | None
) -> list[ToolkitInfo]:
    listed = [
        info
        async for info in room.toolkits(search)
        if participant is None or means(participant, info.owner, info.alias, room.me.alias)
    ]
    lock = room.lock
    if lock is None:
        return listed
    found: list[ToolkitInfo] = []
    for info in listed:
        entry = lock.entry_for(info)
        if entry is not None:
            found.append(info)
            if not entry.matches(info):
                # Raises the error that shows the difference.
                await room.toolkit(info.name, None if info.public else info.full_owner)
    return found


async def _find(room: CommandRoom, target: CallTarget) -> ToolkitProxy:
    proxy = await find_toolkit(room, target)
    if target.tool:
        try:
            proxy.tool(target.tool)
        except NotFound as error:
            names = (tool.name for tool in proxy.manifest.tools)
            raise suggest_tool(error, target, names) from None
    return proxy


# What is left out


def _show_left_out(proxy: ToolkitProxy, *, as_json: bool) -> None:
    """Print the tools that a toolkit does not host, and what of its schemas is not checked."""
    annotations = proxy.manifest.annotations
    left_out, left_out_count = entries_in(annotations, "left_out")
    unchecked, unchecked_count = entries_in(annotations, "unchecked")
    if as_json:
        facts = {
            "left_out": [asdict(entry) for entry in left_out],
            "left_out_count": left_out_count,
            "unchecked": [asdict(entry) for entry in unchecked],
            "unchecked_count": unchecked_count,
        }
        typer.echo(json_text(facts))
        return
    rows = [("left out", entry.name, entry.reason) for entry in left_out]
    rows += [("unchecked", entry.name, entry.reason) for entry in unchecked]
    if rows:
        show_columns([_LEFT_OUT_COLUMNS, *rows])
    else:
        typer.echo(f"{proxy.info.name} leaves nothing out", err=True)
    more = left_out_count + unchecked_count - len(rows)
    if more:
        typer.echo(f"{more} more are not listed", err=True)


# The list


def _show_list(found: Sequence[ToolkitInfo]) -> None:
    rows = [
        (
            info.name,
            ", ".join(info.tools),
            info.full_owner,
            str(info.hosts),
            "all" if info.public else "some",
            " ".join((info.description or _own_title(info)).split()),
        )
        for info in found
    ]
    show_columns([_COLUMNS, *rows])
    for info in found:
        for line in reserve_lines(info):
            typer.echo(f"{one_line(info.name)}: {line}")


# One toolkit


def _facts(proxy: ToolkitProxy, chosen: Sequence[ToolManifest]) -> dict[str, Any]:
    manifest = proxy.manifest.model_dump(mode="json")
    manifest["tools"] = [tool.model_dump(mode="json") for tool in chosen]
    info = proxy.info
    facts = {"owner": info.full_owner, "public": info.public, "hosts": info.hosts}
    reserve = [asdict(definition) for definition in info.reserve]
    return {**manifest, **facts, "digest": info.digest, "reserve": reserve}


def _show_lines(lines: Iterator[tuple[str, str]]) -> None:
    columns = terminal_columns()
    for style, line in lines:
        # Line ends are escaped, so that untrusted text cannot imitate other lines.
        text = one_line(line)
        indent = " " * (len(text) - len(text.lstrip()) + 2)
        for part in wrapped(text, columns, indent):
            typer.echo(typer.style(part, **{style: True} if style else {}))


def _toolkit_lines(
    proxy: ToolkitProxy, chosen: Sequence[ToolManifest], *, is_nested: bool
) -> Iterator[tuple[str, str]]:
    info, manifest = proxy.info, proxy.manifest
    visibility = "public" if info.public else "private"
    yield "bold", ": ".join(filter(None, (info.name, _own_title(manifest))))
    owner = f"owner {info.full_owner}, hosts {info.hosts}"
    yield "dim", f"  {visibility}, {owner}, version {info.version or '-'}"
    yield "dim", f"  digest {info.digest}"
    server = _mcp_server(manifest)
    if server:
        yield "dim", f"  {server}"
    for line in reserve_lines(info):
        yield "dim", f"  {line}"
    yield from _paragraph(manifest.description, "  ")
    yield from _rules(manifest.rules)
    # The total work is bounded, however many tools an untrusted toolkit has.
    steps = max(_MIN_STEPS, min(MAX_STEPS, _MAX_TOTAL_STEPS // max(1, len(chosen))))
    read = SchemaTree if is_nested else partial(SchemaTree, levels=1, max_steps=steps)
    for tool in chosen:
        yield "", ""
        yield from _tool_lines(info.name, tool, read)
        if _mcp_server(tool) not in ("", server):
            yield "dim", f"  {_mcp_server(tool)}"
    _, left_out = entries_in(manifest.annotations, "left_out")
    if left_out and not is_nested:
        noun = "tool is" if left_out == 1 else "tools are"
        yield "", ""
        yield "dim", f"{left_out} {noun} left out: toolbus tools {info.name} --left-out"


def _mcp_server(described: ToolkitManifest | ToolManifest) -> str:
    """Return which MCP server wrote what is described; empty if none did."""
    name = described.annotations.get("mcp")
    if name is None:
        return ""
    trust = "trusted" if described.annotations.get("mcp_trusted") is True else "not trusted"
    return f"of the MCP server {shown(name)}, which its host says is {trust}"


def _paragraph(text: str, indent: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        yield "", f"{indent}{line}".rstrip()


def _rules(rules: Sequence[str]) -> Iterator[tuple[str, str]]:
    for rule in rules:
        first, *others = rule.splitlines() or [""]
        yield "", f"  rule: {first}"
        yield from _paragraph("\n".join(others), "        ")


def _tool_lines(
    toolkit: str, tool: ToolManifest, read: Callable[[Mapping[str, Any]], SchemaTree]
) -> Iterator[tuple[str, str]]:
    parameters = read(tool.input_schema)
    result = tool.output_schema and read(tool.output_schema)
    title = f"{toolkit}.{tool.name}"
    if result:
        title = f"{title} -> {result.type_text}"
    yield "bold", title
    yield from _paragraph(tool.description, "  ")
    yield from _rules(tool.rules)
    if properties := ", ".join(_properties(tool)):
        yield "dim", f"  {properties}"
    for line in node_lines(parameters.nodes(), "    "):
        yield "", line
    if result and result.is_nested and (fields := result.nodes()):
        yield "dim", "  returns"
        for line in node_lines(fields, "    "):
            yield "", line


def _properties(tool: ToolManifest) -> Iterator[str]:
    flags = {
        "read-only": tool.read_only,
        "idempotent": tool.idempotent,
        "destructive": tool.destructive,
        "a person should approve each call": tool.approval,
        "streaming": tool.streaming,
    }
    yield from (text for text, is_set in flags.items() if is_set)
    if tool.takes in _TAKES:
        yield f"{'requires' if tool.takes_required else 'accepts'} {_TAKES[tool.takes]}"
    if tool.supports_context:
        yield "reads the caller's context (--caller-context)"
    if tool.timeout_s is not None:
        yield f"time limit {tool.timeout_s:g} s"
    if tool.max_concurrency is not None:
        yield f"at most {tool.max_concurrency} concurrent calls per host"


def _own_title(toolkit: ToolkitInfo | ToolkitManifest) -> str:
    """Return the title of a toolkit, or nothing if it is just its name."""
    if toolkit.title == toolkit.name:
        return ""
    return toolkit.title


# What a participant builds


_GRANT_STEP = (
    "`toolbus doctor` with the same options shows the grants of the token; "
    f"`{grant_command('agents.builders=*')}` creates one for all builders"
)


@joins_a_room
def builders(
    options: RoomOptions,
    participant: Annotated[
        str, typer.Argument(help="Name of the participant that offers the builders.")
    ],
) -> None:
    """List the toolkits that a participant builds on request.

    Each is listed with its configuration fields.
    """
    found = in_room(options, lambda room: _builders(room, participant))
    if options.as_json:
        typer.echo(json_text([info.to_wire() for info in found]))
    elif not found:
        text = (
            f"{one_line(cut(participant))} has no builders that your grant agents.builders "
            f"covers\n  next: {_GRANT_STEP}"
        )
        typer.echo(text, err=True)
    else:
        _show_lines(_builder_lines(found))


async def _builders(room: CommandRoom, participant: str) -> list[BuilderInfo]:
    """Return the builders; none only for a participant that the grant `presence` shows.

    Raises:
        NotFound: There are none, and this participant may be absent.
    """
    found = await room.list_builders(participant)
    if found:
        return found
    if room.grants.presence:
        listed = await room.participants()
        if any(means(participant, info.name, info.alias, room.me.alias) for info in listed):
            return []
    raise with_step(
        NotFound(
            f"{shown(participant)} is not in the room, or has no builders that your grant "
            "agents.builders covers"
        ),
        f"check the name; {_GRANT_STEP}",
    )


def _builder_lines(found: Sequence[BuilderInfo]) -> Iterator[tuple[str, str]]:
    for offer in found:
        yield "bold", offer.name
        yield from _paragraph(offer.description, "  ")
        schema = dict(offer.schema)
        fields = schema.get("properties")
        if isinstance(fields, Mapping):  # every configuration has a name
            schema["properties"] = {name: fields[name] for name in fields if name != "name"}
        for line in node_lines(SchemaTree(schema).nodes(), "    "):
            yield "", line
