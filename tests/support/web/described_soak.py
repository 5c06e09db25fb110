"""Published descriptions: each operation hosted and called, against a server that echoes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from support.web.described_api import echo
from support.web.sample_values import sample_arguments
from support.web.scripted_server import WebServer, web_server
from toolbus import FileChunk, InputStream, RoomClient, Tool, ToolFailed
from toolbus.errors import RoomException
from toolbus_server.testing import room_of
from toolbus_toolkits.credentials.references import CredentialResolver
from toolbus_toolkits.network import AddressPolicy
from toolbus_toolkits.openapi import ApiOptions, OpenApiToolkit, SpecError
from toolbus_toolkits.openapi.arguments import tool_names
from toolbus_toolkits.openapi.descriptions import read_api
from toolbus_toolkits.openapi.documents import load_file
from toolbus_toolkits.openapi.model import Api, Operation
from toolbus_toolkits.openapi.requests import split_template

__all__ = ["Findings", "examine", "table"]

_LOCAL = AddressPolicy(allow_private=True)


@dataclass
class Findings:
    """What came of one description."""

    file: str
    operations: int = 0
    tools: int = 0
    kits: int = 0
    unchecked: int = 0
    right: int = 0
    without_sample: int = 0
    """Operations for whose arguments no fitting sample was found."""
    left_out: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    error: str = ""


async def examine(path: Path) -> Findings:
    """Load, host and call every operation of a description; of a large one tag by tag."""
    findings = Findings(path.name)
    async with web_server(echo) as server, room_of("host", "caller") as (host, caller):
        try:
            api = read_api(load_file(path, _LOCAL))
            findings.operations = len(api.operations)
            kits = list(_kits(path, api, _options(api, server.url), findings))
        except ValueError as error:
            findings.error = str(error)
            return findings
        names = tool_names(api.operations)
        by_name = {names[each.key]: each for each in api.operations}
        called: set[str] = set()
        for kit in kits:
            findings.kits += 1
            findings.unchecked += len(kit.unchecked)
            findings.left_out += kit.skipped
            try:
                async with host.host(kit):
                    for tool in kit.tools:
                        if tool.name not in called:  # an operation may have several tags
                            called.add(tool.name)
                            await _call(caller, server, tool, by_name[tool.name], findings)
            except RoomException as error:
                findings.wrong.append(f"hosting {len(kit.tools)} tools: {error}")
        findings.tools = len(called)
        findings.left_out = list(dict.fromkeys(findings.left_out))
    return findings


def _options(api: Api, url: str) -> ApiOptions:
    schemes = [name for name, each in api.schemes.items() if each.kind != "unsupported"]
    return ApiOptions(
        name="api",
        server=url,
        allow_private=True,
        credentials=dict.fromkeys(schemes, "user:password"),
        resolver=CredentialResolver(None),
    )


def _kits(
    path: Path, api: Api, options: ApiOptions, findings: Findings
) -> Iterator[OpenApiToolkit]:
    """Give toolkits that fit into a room: one, or one for each tag, or for some operations."""
    try:
        kit = OpenApiToolkit.from_file(path, options=options)
    except SpecError as error:
        if "at most 1,000" not in str(error):
            raise
    else:
        if not kit.size_hint:
            yield kit
            return
    for tag in sorted({tag for each in api.operations for tag in each.tags[:1]}):
        try:
            kit = OpenApiToolkit.from_file(path, tags=[tag], options=options)
        except SpecError as error:
            findings.left_out.append(f"tag {tag}: {error}")
            continue
        if kit.size_hint:
            chosen = [each for each in api.operations if tag in each.tags]
            yield from _halves(path, api, chosen, options, findings)
        else:
            yield kit
    untagged = [each for each in api.operations if not each.tags]
    yield from _halves(path, api, untagged, options, findings)


def _halves(
    path: Path, api: Api, chosen: list[Operation], options: ApiOptions, findings: Findings
) -> Iterator[OpenApiToolkit]:
    """Give toolkits of some operations, which are halved until they fit."""
    if not chosen:
        return
    names = tool_names(api.operations)
    try:
        kit = OpenApiToolkit.from_file(
            path, operations=[names[each.key] for each in chosen], options=options
        )
    except SpecError as error:
        if len(chosen) == 1:
            findings.left_out.append(str(error))
            return
    else:
        if not kit.size_hint:
            yield kit
            return
    middle = len(chosen) // 2
    for half in (chosen[:middle], chosen[middle:]):
        yield from _halves(path, api, half, options, findings)


async def _call(
    caller: RoomClient, server: WebServer, tool: Tool, operation: Operation, findings: Findings
) -> None:
    manifest = tool.manifest()
    arguments = sample_arguments(manifest.input_schema)
    try:
        tool.read_arguments(arguments)
    except (RoomException, ValueError):
        findings.without_sample += 1
        return
    sent = FileChunk(b"x", "x.txt", "text/plain")
    upload: InputStream[Any] | FileChunk | None = sent if manifest.takes_required else None
    before = len(server.seen)
    try:
        await caller.invoke(f"api.{tool.name}", arguments, attachment=upload)
    except (RoomException, ToolFailed) as error:
        findings.wrong.append(f"{operation.label}: {error}")
        return
    seen = server.seen[before]
    problem = _problem(operation, seen.method, seen.target, seen.headers.get("content-type", ""))
    if problem:
        findings.wrong.append(f"{operation.label}: {problem}")
    else:
        findings.right += 1


def _problem(operation: Operation, method: str, target: str, media_type: str) -> str:
    """Return what of a request does not fit its operation; empty if all does."""
    path, query = split_template(operation.path)
    parts = re.split(r"\{[^{}]*\}", path)
    pattern = "[^/?#]+".join(re.escape(unquote(part)) for part in parts)
    got_path, _, got_query = target.partition("?")
    if method != operation.method or not re.fullmatch(pattern, unquote(got_path)):
        return f"it was sent as {method} {target}"
    fixed = [part for part in query.split("&") if part and "{" not in part]
    if not set(fixed) <= set(got_query.split("&")):
        return f"it was sent with the query {got_query}"
    types = operation.body.media_types if operation.body is not None else ()
    described = {each.name.partition(";")[0] for each in types}
    name = media_type.partition(";")[0]
    if name and described and name not in described and not any("*" in each for each in described):
        return f"it was sent as {media_type}"
    return ""


def table(rows: Iterable[Findings]) -> str:
    """Return what was found as a table, and below it the reasons."""
    lines = [
        f"{'file':<28}{'operations':>11}{'kits':>6}{'tools':>7}{'left out':>10}{'unchecked':>11}"
        f"{'right':>7}{'wrong':>7}{'no sample':>11}"
    ]
    rows = list(rows)
    lines += [
        f"{each.file[:27]:<28}{each.operations:>11}{each.kits:>6}{each.tools:>7}"
        f"{len(each.left_out):>10}{each.unchecked:>11}{each.right:>7}{len(each.wrong):>7}"
        f"{each.without_sample:>11}" + (f"  {each.error[:200]}" if each.error else "")
        for each in rows
    ]
    for each in rows:
        for what, texts in (("left out", each.left_out), ("wrong", each.wrong)):
            kinds = Counter(_kind(text) for text in texts)
            examples = {_kind(text): text for text in reversed(texts)}
            lines += [
                f"{each.file}: {what}: {count} as {examples[kind][:300]}"
                for kind, count in kinds.most_common(10)
            ]
    return "\n".join(lines)


def _kind(text: str) -> str:
    """Return a reason without what differs from case to case."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|\d+|/\S*", "_", text.partition(": ")[2])[:80]
