"""The hooks of the documentation build: the pages that they generate, and how they change links."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from typer.main import get_command

from toolbus import wire
from toolbus.cli.app import CommandGroup, make_app

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built(hooks: ModuleType, markdown: str, page: str = "reference/page.md") -> str:
    at = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    text: str = hooks.on_page_markdown(markdown, page=at)
    return text


def test_every_command_has_a_section_with_its_options(hooks: ModuleType) -> None:
    text = built(hooks, "<!-- commands -->")
    group = get_command(make_app())
    assert isinstance(group, CommandGroup)
    sections = re.findall(r"^## toolbus (\S+)$", text, re.MULTILINE)
    assert sections == group.list_commands(None)
    assert "### toolbus token create" in text
    assert "| `--port` | Port to listen on; 0 takes a free one. | `7717` |" in text
    assert text.count("| `--context` |") == 1


def test_every_module_is_listed_with_a_sentence(hooks: ModuleType) -> None:
    text = built(hooks, "<!-- modules: toolbus -->")
    listed = dict(re.findall(r"^\| `([\w.]+)` \| (.+) \|$", text, re.MULTILINE))
    folder = ROOT / "sdk" / "toolbus"
    assert len(listed) == len([*folder.rglob("*.py")])
    assert listed["client.caller"].endswith(".")


def test_every_name_of_the_wire_format_is_listed_with_its_package(hooks: ModuleType) -> None:
    text = built(hooks, "<!-- names: toolbus.wire -->")
    members = re.findall(r"members: \[(.*)\]", text)[0].split(", ")
    public = {name for name in vars(wire) if not name.startswith("_")}
    modules = {name for name, value in vars(wire).items() if isinstance(value, ModuleType)}
    assert text.startswith("::: toolbus.wire\n")
    assert len(members) == len(set(members))
    assert set(members) == public - modules


def test_protocol_is_included_without_its_title(hooks: ModuleType) -> None:
    text = built(hooks, "# Title\n\n<!-- include: sdk/toolbus/wire/PROTOCOL.md -->\n")
    assert text.count("\n# ") == 0
    assert "## 1. A call from start to end" in text
    assert "../" not in text


@pytest.mark.parametrize(
    ("link", "becomes"),
    [
        ("[deploy](../guides/deploy.md#production)", "[deploy](../guides/deploy.md#production)"),
        ("[rules](../../sdk/toolbus/wire/PROTOCOL.md)", "[rules](protocol.md)"),
        ("[room.js](../../tests/browser/room.js)", "`room.js`"),
        ("[a page](../../tests/browser)", "a page (`tests/browser`)"),
        ("[nothing](../nothing.md)", "[nothing](../nothing.md)"),
        ("[web](https://example.org/)", "[web](https://example.org/)"),
    ],
)
def test_link_that_leaves_the_site_becomes_a_name(
    hooks: ModuleType, link: str, becomes: str
) -> None:
    assert built(hooks, f"See {link}.") == f"See {becomes}."
    assert built(hooks, f"```\nSee {link}.\n```") == f"```\nSee {link}.\n```"
