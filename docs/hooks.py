"""Hooks of the documentation build: text made from the code, and links that leave `docs/`.

A page may contain these markers, each on a line of its own:

- `<!-- commands -->`: every command of `toolbus` with its arguments and options.
- `<!-- modules: PACKAGE -->`: the modules of a package, with the first sentence of each.
- `<!-- names: PACKAGE -->`: the public names of a package that imports each `as` itself.
- `<!-- include: FILE -->`: a Markdown file of the repository.

A relative link to a file outside `docs/` works in the repository, and cannot work on the site: it
becomes a link to the page that includes the file, else the name of the file.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from toolbus.cli.app import make_app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    "CHANGELOG.md": "reference/changelog.md",
    "sdk/toolbus/wire/PROTOCOL.md": "reference/protocol.md",
    "README.md": "index.md",
}
"""Files outside `docs/` whose text is a page."""
ROOM = "Room"
"""The help panel of the options that all commands share which join a room."""
LOG = "Log"
"""The help panel of the options of every command, which the page describes."""

_MARKER = re.compile(r"^<!-- (commands|modules|names|include)(?:: (\S+))? -->$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]\n]+(?:\n[^\]\n]+)?)\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the markers of a page and settle its links."""
    source = DOCS / page.file.src_uri
    markdown = _links(markdown, source.parent, source)

    def fill(marker: re.Match[str]) -> str:
        return _MAKERS[marker[1]](marker[2] or "", source)

    return _MARKER.sub(fill, markdown)


def _links(text: str, folder: Path, page: Path) -> str:
    """Settle the links of a text that lies in a folder and is shown on a page."""

    def settle(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if not target.exists():
            return link[0]  # the build names it
        inside = PAGES.get(target.relative_to(ROOT).as_posix())
        target = DOCS / inside if inside else target
        if target.is_relative_to(DOCS):
            return f"[{link[1]}]({_relative(target, page.parent)}{link[3] or ''})"
        path = target.relative_to(ROOT).as_posix()
        name = link[1].replace("\n", " ").strip("`")
        is_its_name = path.startswith(name.rstrip("/")) or path.endswith(name)
        return f"`{name}`" if is_its_name else f"{link[1]} (`{path}`)"

    parts = []
    at = 0
    for fence in _FENCED.finditer(text):
        parts += [_LINK.sub(settle, text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, _LINK.sub(settle, text[at:])])


def _relative(target: Path, folder: Path) -> str:
    return Path(os.path.relpath(target, folder)).as_posix()


# Text of the repository


def _include(name: str, page: Path) -> str:
    path = ROOT / name
    _, _, below_title = path.read_text(encoding="utf-8").partition("\n")
    return _links(below_title.strip(), path.parent, page)


# Modules


def _modules(package: str, _: Path) -> str:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    found = [f"| `{name}` | {words} |" for name, words in _summaries(folder)]
    return "\n".join(["| module | what it contains |", "|---|---|", *found])


def _summaries(folder: Path) -> Iterator[tuple[str, str]]:
    """Give the name of each module below a package, and the first sentence of its docstring."""
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).parts):
        name = path.relative_to(folder).with_suffix("").as_posix().removesuffix("__init__")
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        yield name.replace("/", ".").rstrip(".") or folder.name, _cell(docstring.split("\n\n")[0])


def _names(package: str, _: Path) -> str:
    # mkdocstrings shows an imported name only where `members` has it.
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    imports = ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    names = ", ".join(
        name.asname for name in imports if isinstance(name, ast.alias) and name.asname
    )
    options = f"show_root_heading: false, show_root_toc_entry: false, members: [{names}]"
    return f"::: {package}\n    options: {{{options}}}"


# Commands


def _commands(_name: str, _page: Path) -> str:
    group: Any = get_command(make_app())
    context = typer.Context(group, info_name="toolbus")
    parts: list[str] = []
    shared: list[Any] = []
    for name in group.list_commands(context):
        command = group.import_command(context, name)
        below = getattr(command, "commands", {})
        parts += _command(f"toolbus {name}", command, 2)
        for each in (command, *below.values()):
            shared = shared or [option for option in each.params if _is_shared(option)]
        for sub in below.values():
            parts += _command(f"toolbus {name} {sub.name}", sub, 3)
    title = "## Options of commands that join a room"
    return "\n\n".join([*parts, title, _options(shared)])


def _command(title: str, command: Any, level: int) -> list[str]:
    usage = " ".join([title, *command.collect_usage_pieces(typer.Context(command))])
    own = [each for each in command.params if each.rich_help_panel not in (ROOM, LOG)]
    own = [each for each in own if not each.hidden]
    parts = [f"{'#' * level} {title}", _prose(command.help or ""), f"```text\n{usage}\n```"]
    if own:
        parts.append(_options(own))
    if any(map(_is_shared, command.params)):
        parts.append("It also takes the [room options](#options-of-commands-that-join-a-room).")
    return parts


def _is_shared(option: Any) -> bool:
    return bool(option.rich_help_panel == ROOM)


def _prose(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", r"\*")


def _options(options: list[Any]) -> str:
    lines = ["| argument or option | meaning | default | variable |", "|---|---|---|---|"]
    for each in options:
        name = ", ".join(f"`{name}`" for name in each.opts)
        variable = f"`{each.envvar}`" if getattr(each, "envvar", None) else ""
        lines.append(f"| {name} | {_cell(each.help or '')} | {_default(each)} | {variable} |")
    return "\n".join(lines)


def _default(option: Any) -> str:
    if option.required:
        return "required"
    return "" if option.default in (None, False, "", [], ()) else f"`{option.default}`"


def _cell(text: str) -> str:
    return _prose(" ".join(text.split())).replace("|", r"\|")


_MAKERS: dict[str, Callable[[str, Path], str]] = {
    "commands": _commands,
    "modules": _modules,
    "names": _names,
    "include": _include,
}
