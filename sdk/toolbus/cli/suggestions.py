"""Suggests names in place of a name that was not found ("did you mean ...?").

Toolkits and tools are looked up among those that the participant can see, with at most one short
request; without an answer there is no suggestion. `module:attribute` references of `toolbus host`
are looked up in the source files of a folder, without importing them.
"""

from __future__ import annotations

import ast
import asyncio
import shlex
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from toolbus.auth.participant_names import means
from toolbus.cli.room_options import CommandRoom
from toolbus.diagnostics.exit_codes import CallTarget, with_step
from toolbus.errors import NotFound, RoomException
from toolbus.room.toolkit_proxy import ToolkitInfo, ToolkitProxy
from toolbus.tools.tool_run import Participant
from toolbus.untrusted_text import one_line

__all__ = [
    "find_toolkit",
    "listed",
    "nearest",
    "suggest_name",
    "suggest_references",
    "suggest_tool",
]

_TIMEOUT_S = 2.0
_MAX_NAMES = 1_000
"""A toolkit of others may have any number, and each is compared with the wrong name."""
_CHARS = 64
"""A name of others may be long: comparing two takes time in the product of their lengths."""
_LISTED = 8


def nearest(name: str, names: Iterable[str], most: int = 1) -> list[str]:
    """Return the names that are similar to a wrong one, the most similar first."""
    short = [known for known in dict.fromkeys(names) if len(known) <= _CHARS]
    # Lower, `/foo` would mean `/tools`, and `status` `stubs`.
    return get_close_matches(name[:_CHARS], short, n=most, cutoff=0.75)


def listed(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many more it has."""
    text = ", ".join(one_line(name, _CHARS) for name in names[:_LISTED])
    left = len(names) - _LISTED
    return f"{text} and {left} more" if left > 0 else text


# Toolkits and tools of a room


async def find_toolkit(room: CommandRoom, target: CallTarget) -> ToolkitProxy:
    """Return the toolkit of a target. Raises NotFound, which suggests others, or RoomException."""
    try:
        return await room.toolkit(target.toolkit, target.participant)
    except NotFound as error:
        raise await suggest_name(error, room, target) from None


async def suggest_name(error: NotFound, room: CommandRoom, target: CallTarget) -> NotFound:
    """Suggest a toolkit or a tool in place of one that the server did not find.

    Returns:
        The same error, or one with suggestions.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            seen = await room.first_toolkits()
    except (RoomException, TimeoutError):
        return error
    me, error = room.me, _with_room(error, room.room)
    for info in seen.toolkits:
        if info.name == target.toolkit and _matches_owner(info, target, me):
            return suggest_tool(error, target, info.tools)
    if not seen.cover(target.toolkit):
        return error
    if text := _toolkit_suggestion(seen.toolkits, target, me):
        return _with_suggestion(error, text)
    return error


def _with_room(error: NotFound, room: str) -> NotFound:
    """Add the name of the room: the toolkit may be in another one."""
    if not error.message.startswith("toolkit "):
        return error
    text, separator, reason = error.message.partition("; ")
    if reason.startswith("there is a private one of "):  # explained in words of the commands
        separator = reason = ""
    return NotFound(f"{text} in room {room}{separator}{reason}", details=error.details)


def suggest_tool(error: NotFound, target: CallTarget, tools: Iterable[str]) -> NotFound:
    """Suggest a tool of the same toolkit in place of one that was not found."""
    names = list(islice(tools, _MAX_NAMES))
    if not target.tool or target.tool in names or not names:
        return error
    if near := nearest(target.tool, names, 2):
        meant = " or ".join(f"{target.toolkit}.{name}" for name in near)
        return _with_suggestion(error, f"did you mean {meant}?")
    command = CallTarget(target.toolkit, participant=target.participant).show_command
    return _with_suggestion(error, f"{target.toolkit} has {listed(names)}, see `{command}`")


def _matches_owner(info: ToolkitInfo, target: CallTarget, me: Participant) -> bool:
    """Whether the target's `participant` selects this toolkit."""
    if target.participant:
        return means(target.participant, info.owner, info.alias, me.alias)
    return info.public or info.full_owner == me.full_name


def _toolkit_suggestion(seen: Sequence[ToolkitInfo], target: CallTarget, me: Participant) -> str:
    namesake = next((info for info in seen if info.name == target.toolkit), None)
    if namesake is not None:
        return f"there is {_owner_text(namesake)}"
    near = nearest(target.toolkit, [info.name for info in seen])
    if not near:
        return ""
    found = next(info for info in seen if info.name == near[0])
    name = found.name
    if target.tool in found.tools:
        name = f"{name}.{target.tool}"
    if not _matches_owner(found, target, me):
        name = f"{name}, {_owner_text(found)}"
    return f"did you mean {name}?"


def _owner_text(info: ToolkitInfo) -> str:
    """Return how to select a toolkit of another owner."""
    if info.public:
        return f"a public one of {info.full_owner}: omit --participant"
    owner = info.full_owner
    return f"a private one of {owner}: add --participant {shlex.quote(owner)}"


def _with_suggestion(error: NotFound, text: str) -> NotFound:
    # No next step: the message says what to do.
    return with_step(NotFound(f"{error.message}: {text}", details=error.details), "")


# References to toolkits in source files


def suggest_references(reference: str, folder: Path) -> list[str]:
    """Return existing references of the form `module:attribute`, similar to a wrong one."""
    path, _, attribute = reference.partition(":")
    module = path.removesuffix(".py").removeprefix("./").replace("/", ".")
    if not all(part.isidentifier() for part in module.split(".")):
        return []
    found = _in_module(folder, module, attribute) or _in_module(folder, module, "")
    head, dot, last = module.rpartition(".")
    if not found and dot and not attribute:
        found = _in_module(folder, head, last)
    return found[:3]


def _in_module(folder: Path, module: str, attribute: str) -> list[str]:
    """Return the toolkits of a module; if `attribute` is given, only that one."""
    tree = _parsed(folder.joinpath(*module.split(".")))
    if tree is None:
        return []
    namesake = module.rpartition(".")[2]
    return [
        f"{module}:{name}"
        for name, makes_one in dict(_names_in(tree)).items()
        if (name == attribute if attribute else makes_one or name == namesake)
    ]


def _parsed(path: Path) -> ast.Module | None:
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        try:
            return ast.parse(file.read_bytes())
        except (OSError, ValueError, SyntaxError, RecursionError):
            continue
    return None


def _names_in(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Return each top-level name of a module, and whether it is or creates a toolkit."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield target.id, isinstance(value, ast.Call) and _is_toolkit(value.func)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                yield name, _is_toolkit(annotation)
            case ast.FunctionDef(name=name, args=args, returns=returns):
                makes_one = returns is not None and _is_toolkit(returns)
                is_needed = len(args.posonlyargs) + len(args.args) > len(args.defaults)
                yield name, makes_one and not is_needed and None not in args.kw_defaults


def _is_toolkit(node: ast.expr) -> bool:
    return ast.unparse(node).rpartition(".")[2].strip("'\"").endswith("Toolkit")
