"""`toolbus tools`: what there is to call, and what each tool takes.

On a terminal it is set for reading; into a pipe it is plain columns, or JSON with `--json`. The
words are those of whoever hosts a toolkit, so control characters in them are shown, not obeyed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolbus.commands.outcome import printable
from toolbus.commands.parameters import Parameter, read_parameters, type_words
from toolbus.commands.room_options import RoomOptions, in_room, joins_a_room
from toolbus.room_client import RoomClient
from toolbus.toolkit_proxy import ToolkitInfo, ToolkitProxy
from toolbus.wire import ToolManifest

__all__ = ["tools"]

_COLUMNS = ("toolkit", "tools", "owner", "hosts", "seen by", "what it is for")


@joins_a_room
def tools(
    options: RoomOptions,
    toolkit: Annotated[
        str | None, typer.Argument(help="A toolkit, or toolkit.tool, to read about.")
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="Only those with this text in a name or description.")
    ] = None,
    participant: Annotated[str | None, typer.Option(help="Only what this name hosts.")] = None,
) -> None:
    """List the toolkits you can see, or show what the tools of one take."""
    if toolkit is None:
        found = in_room(options, lambda room: _listed(room, search, participant))
        _show_list(found, as_json=options.as_json)
        return
    name, _, tool = toolkit.partition(".")
    proxy = in_room(options, lambda room: _described(room, name, tool, participant))
    chosen = [proxy.tool(tool)] if tool else list(proxy.manifest.tools)
    if options.as_json:
        typer.echo(json.dumps(_facts(proxy, chosen), ensure_ascii=False))
    else:
        _show_lines(_toolkit_lines(proxy, chosen))


async def _listed(
    room: RoomClient, search: str | None, participant: str | None
) -> list[ToolkitInfo]:
    return [each async for each in room.toolkits(search) if participant in (None, each.owner)]


async def _described(
    room: RoomClient, name: str, tool: str, participant: str | None
) -> ToolkitProxy:
    proxy = await room.toolkit(name, participant)
    if tool:
        proxy.tool(tool)
    return proxy


# The list


def _show_list(found: Sequence[ToolkitInfo], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], ensure_ascii=False))
        return
    if not found:
        words = "no toolkit that you can see is here or matches: `toolbus host` hosts one"
        typer.echo(words, err=True)
        return
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
        console.print(Text(printable(line), style=style))


def _toolkit_lines(
    proxy: ToolkitProxy, chosen: Sequence[ToolManifest]
) -> Iterator[tuple[str, str]]:
    info, manifest = proxy.info, proxy.manifest
    seen = "public" if info.public else "private"
    yield "bold", f"{info.name}: {manifest.title or info.name}"
    yield "dim", f"  {seen}, owner {info.owner}, hosts {info.hosts}, version {info.version or '-'}"
    yield "dim", f"  digest {info.digest}"
    yield from _paragraph(manifest.description, "  ")
    yield from _rules(manifest.rules, "  ")
    for tool in chosen:
        yield "", ""
        yield from _tool_lines(info.name, tool)


def _paragraph(text: str, indent: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        yield "", f"{indent}{line}".rstrip()


def _rules(rules: Sequence[str], indent: str) -> Iterator[tuple[str, str]]:
    for rule in rules:
        yield "", f"{indent}rule: {rule}"


def _tool_lines(toolkit: str, tool: ToolManifest) -> Iterator[tuple[str, str]]:
    parameters = read_parameters(tool.input_schema)
    output = tool.output_schema
    returns = f" -> {type_words(output, output)}" if output else ""
    yield "bold", f"{toolkit}.{tool.name}{returns}"
    yield from _paragraph(tool.description, "  ")
    yield from _rules(tool.rules, "  ")
    if behaviour := ", ".join(_behaviour(tool)):
        yield "dim", f"  {behaviour}"
    width = max((len(name) for name in parameters), default=0)
    types = [_type_and_default(each) for each in parameters.values()]
    type_width = max((len(each) for each in types), default=0)
    for parameter, words in zip(parameters.values(), types, strict=True):
        description = " ".join(parameter.description.split())
        line = f"    {parameter.name.ljust(width)}  {words.ljust(type_width)}  {description}"
        yield "", line.rstrip()


def _type_and_default(parameter: Parameter) -> str:
    if parameter.has_default:
        return f"{parameter.words} = {json.dumps(parameter.default, ensure_ascii=False)}"
    return parameter.words if parameter.required else f"{parameter.words}, optional"


def _behaviour(tool: ToolManifest) -> Iterator[str]:
    if tool.read_only:
        yield "read-only"
    if tool.idempotent:
        yield "idempotent"
    if tool.streaming:
        yield "streaming"
    if tool.timeout_s is not None:
        yield f"at most {tool.timeout_s:g} s"
    if tool.max_concurrency is not None:
        yield f"{tool.max_concurrency} at a time for each host"
