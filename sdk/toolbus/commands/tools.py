"""`toolbus tools`: what there is to call, and what each tool takes.

On a terminal it is set for reading; into a pipe it is plain columns, or JSON with `--json`. The
words are those of whoever hosts a toolkit, so control characters in them are shown, not obeyed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolbus.commands.completion import complete_name, complete_owner
from toolbus.commands.near_names import near_name, near_tool
from toolbus.commands.outcome import reporting
from toolbus.commands.room_options import CommandRoom, RoomOptions, in_room, joins_a_room
from toolbus.commands.schema_tree import SchemaTree, node_lines
from toolbus.commands.schema_words import MAX_STEPS
from toolbus.errors import NotFound
from toolbus.exit_codes import Subject, printable
from toolbus.room_client import RoomClient
from toolbus.toolkit_proxy import ToolkitInfo, ToolkitProxy
from toolbus.wire import ToolManifest

__all__ = ["tools"]

_COLUMNS = ("toolkit", "tools", "owner", "hosts", "seen by", "what it is for")
_TAKES = {"attachment": "an attachment (--attach FILE)", "input": "an input (--input FILE)"}
_STEPS_IN_ALL = 40_000
_LEAST_STEPS = 200


@joins_a_room
def tools(
    options: RoomOptions,
    toolkit: Annotated[
        str | None,
        typer.Argument(
            help="A toolkit, or toolkit.tool, to read about.", autocompletion=complete_name
        ),
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="Only those with this text in a name or description.")
    ] = None,
    participant: Annotated[
        str | None,
        typer.Option(help="Only what this name hosts.", autocompletion=complete_owner),
    ] = None,
) -> None:
    """List the toolkits you can see, or show what the tools of one take."""
    if toolkit is None:
        found = in_room(options, lambda room: _listed(room, search, participant))
        if options.as_json:
            typer.echo(json.dumps([asdict(each) for each in found], ensure_ascii=False))
        elif found:
            _show_list(found)
        else:
            typer.echo(_nothing(options.settle_place().room, search or participant), err=True)
        return
    name, _, tool = toolkit.partition(".")
    asked = Subject(name, tool, participant)
    with reporting(as_json=options.as_json, subject=asked):
        proxy = in_room(options, lambda room: _described(room, asked))
    chosen = [proxy.tool(tool)] if tool else list(proxy.manifest.tools)
    if options.as_json:
        typer.echo(json.dumps(_facts(proxy, chosen), ensure_ascii=False))
    else:
        _show_lines(_toolkit_lines(proxy, chosen, with_insides=bool(tool)))


async def _listed(
    room: RoomClient, search: str | None, participant: str | None
) -> list[ToolkitInfo]:
    return [each async for each in room.toolkits(search) if participant in (None, each.owner)]


async def _described(room: CommandRoom, asked: Subject) -> ToolkitProxy:
    try:
        proxy = await room.toolkit(asked.toolkit, asked.participant)
    except NotFound as error:
        raise await near_name(error, room, asked) from None
    if asked.tool:
        try:
            proxy.tool(asked.tool)
        except NotFound as error:
            names = (each.name for each in proxy.manifest.tools)
            raise near_tool(error, asked, names) from None
    return proxy


# The list


def _nothing(room: str, wanted: str | None) -> str:
    if wanted:
        return f"no toolkit that you can see in room {room} matches: `toolbus tools` lists all"
    return f"no toolkit that you can see is in room {room}: `toolbus host` hosts one"


def _show_list(found: Sequence[ToolkitInfo]) -> None:
    rows = [_row(each) for each in found]
    if sys.stdout.isatty():
        _show_table(rows)
    else:
        _show_columns([_COLUMNS, *rows])


def _row(each: ToolkitInfo) -> tuple[str, ...]:
    words = " ".join(printable(each.description or each.title).split())
    return (
        each.name,
        ", ".join(each.tools),
        printable(each.owner),
        str(each.hosts),
        "all" if each.public else "some",
        words,
    )


def _show_table(rows: Sequence[Sequence[str]]) -> None:
    table = Table(*_COLUMNS, header_style="bold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def _show_columns(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        typer.echo("  ".join([*cells, row[-1]]).rstrip())


# One toolkit


def _facts(proxy: ToolkitProxy, chosen: Sequence[ToolManifest]) -> dict[str, Any]:
    manifest = proxy.manifest.model_dump(mode="json")
    manifest["tools"] = [each.model_dump(mode="json") for each in chosen]
    info = proxy.info
    facts = {"owner": info.owner, "public": info.public, "hosts": info.hosts}
    return {**manifest, **facts, "digest": info.digest}


def _show_lines(lines: Iterator[tuple[str, str]]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for style, line in lines:
        # One line each: no stranger's words begin another.
        console.print(Text(printable(line).replace("\n", "\\n"), style=style))


def _toolkit_lines(
    proxy: ToolkitProxy, chosen: Sequence[ToolManifest], *, with_insides: bool
) -> Iterator[tuple[str, str]]:
    info, manifest = proxy.info, proxy.manifest
    seen = "public" if info.public else "private"
    yield "bold", f"{info.name}: {manifest.title or info.name}"
    yield "dim", f"  {seen}, owner {info.owner}, hosts {info.hosts}, version {info.version or '-'}"
    yield "dim", f"  digest {info.digest}"
    yield from _paragraph(manifest.description, "  ")
    yield from _rules(manifest.rules, "  ")
    # However many tools a stranger's toolkit has, reading them has an end.
    steps = max(_LEAST_STEPS, min(MAX_STEPS, _STEPS_IN_ALL // max(1, len(chosen))))
    look = SchemaTree if with_insides else partial(SchemaTree, levels=1, max_steps=steps)
    for tool in chosen:
        yield "", ""
        yield from _tool_lines(info.name, tool, look)


def _paragraph(text: str, indent: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        yield "", f"{indent}{line}".rstrip()


def _rules(rules: Sequence[str], indent: str) -> Iterator[tuple[str, str]]:
    for rule in rules:
        first, *others = rule.splitlines() or [""]
        yield "", f"{indent}rule: {first}"
        yield from _paragraph("\n".join(others), f"{indent}      ")


def _tool_lines(
    toolkit: str, tool: ToolManifest, look: Callable[[Mapping[str, Any]], SchemaTree]
) -> Iterator[tuple[str, str]]:
    takes = look(tool.input_schema)
    gives = look(tool.output_schema) if tool.output_schema else None
    returns = f" -> {gives.words}" if gives else ""
    yield "bold", f"{toolkit}.{tool.name}{returns}"
    yield from _paragraph(tool.description, "  ")
    yield from _rules(tool.rules, "  ")
    if behaviour := ", ".join(_behaviour(tool)):
        yield "dim", f"  {behaviour}"
    for line in node_lines(takes.nodes(), "    "):
        yield "", line
    if gives and gives.goes_deep and (inside := gives.nodes()):
        yield "dim", "  returns"
        for line in node_lines(inside, "    "):
            yield "", line


def _behaviour(tool: ToolManifest) -> Iterator[str]:
    if tool.read_only:
        yield "read-only"
    if tool.idempotent:
        yield "idempotent"
    if tool.streaming:
        yield "streaming"
    if tool.takes in _TAKES:
        yield f"{'needs' if tool.takes_required else 'may take'} {_TAKES[tool.takes]}"
    if tool.timeout_s is not None:
        yield f"at most {tool.timeout_s:g} s"
    if tool.max_concurrency is not None:
        yield f"{tool.max_concurrency} at a time for each host"
