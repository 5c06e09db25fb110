"""The pages of docs/reference agree with the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from toolbus import Agent, AgentsGrant, ApiScope
from toolbus.auth.grant_options import PRESETS
from toolbus.cli.app import make_app
from toolbus.diagnostics.exit_codes import ExitCode, exit_code
from toolbus.errors import ERRORS
from toolbus_server.limits import Limits

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "reference"


def rows(page: str, *headings: str) -> list[list[str]]:
    """The cells of all tables of a page whose first columns have these headings."""
    found, is_inside = list[list[str]](), False
    head = f"| {' | '.join(headings)} |"
    for line in (REFERENCE / page).read_text(encoding="utf-8").splitlines():
        if line.startswith(head):
            is_inside = True
        elif is_inside and line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r" \||\| ", line.strip("|"))]
            found += [] if line.startswith("|---") else [cells]
        else:
            is_inside = False
    assert found, head
    return found


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_grants_table_has_every_field_with_its_default() -> None:
    fields = {
        **{f"agents.{name}": value for name, value in vars(AgentsGrant()).items()},
        **{name: value for name, value in vars(ApiScope()).items() if name != "agents"},
    }
    words = {False: "no", (): "none", ("*",): "`*`"}
    shown = {codes(row[0])[0]: row[1] for row in rows("grants.md", "field", "default")}
    assert shown == {name: words[value] for name, value in fields.items()}


def test_presets_table_has_every_preset_with_its_switches() -> None:
    table = rows("grants.md", "preset")
    assert [codes(row[0]) for row in table] == [
        [f"ApiScope.{make.__name__}()", f"--preset {name}"] for name, make in PRESETS.items()
    ]
    for row, make in list(zip(table, PRESETS.values(), strict=True))[:2]:
        scope = make()
        granted = {**vars(scope.agents), **vars(scope)}
        assert {*codes(row[1])} == {name for name, value in granted.items() if value is True}


def test_errors_table_has_every_code_with_the_rules_of_its_class() -> None:
    table = {code: row for row in rows("errors.md", "code") for code in codes(row[0])}
    assert table.keys() == ERRORS.keys()
    for code, kind in ERRORS.items():
        _, executed, retryable, exits, *_ = table[code]
        error = kind()
        assert error.executed == (executed if executed in {"no", "yes"} else "maybe"), code
        assert retryable.startswith("yes") == error.retryable, code
        assert retryable.startswith("if no") == (
            not error.retryable and kind("", executed="no").retryable
        ), code
        found = {exit_code(kind("", executed="no")), exit_code(error)}
        assert {int(each) for each in exits.split(" or ")} == found, code


def test_every_exit_code_is_explained() -> None:
    assert [int(codes(row[0])[0]) for row in rows("cli.md", "exit code")] == list(ExitCode)
    assert {exit_code(kind()) for kind in ERRORS.values()} == set(ExitCode) - {
        ExitCode.OK,
        ExitCode.READER_CLOSED,
        ExitCode.TERMINATED,
    }


def test_limits_are_those_of_the_server() -> None:
    shown = {row[0].partition(" of one")[0]: row[1] for row in rows("errors.md", "limit")}
    limits = Limits()
    assert shown["calls in flight"] == f"{limits.max_calls:,}"
    assert shown["of these, calls with a stream, input or progress"] == f"{limits.max_streams:,}"
    assert shown["toolkits hosted by one participant"] == f"{limits.max_toolkits:,}"
    assert shown["toolkits"] == f"{limits.max_room_toolkits:,}"
    assert shown["nested calls"] == f"{limits.max_hops} deep"
    assert shown["deadline of a call that names none; a stream has none"] == (
        f"{limits.call_timeout_ms // 1000} s"
    )
    assert shown["stream without progress"] == f"{limits.stream_idle_ms // 1000} s"
    unread = shown["stream, file or large result of which the caller takes nothing"]
    assert unread == f"{limits.stream_unread_ms // 1000} s"


def test_guide_to_agents_has_every_option_and_every_flag() -> None:
    options = inspect.signature(Agent).parameters.keys() - {"room", "model", "unknown"}
    shown = [codes(row[0]) for row in rows("../guides/agents.md", "option", "what it is")]
    assert {name for names in shown for name in names} == options
    group: Any = get_command(make_app())
    _, command, _ = group.resolve_command(typer.Context(group), ["agent"])
    panels = {each.opts[0]: getattr(each, "rich_help_panel", None) for each in command.params}
    flags = {flag for flag, panel in panels.items() if panel == "Agent"}
    table = [codes(row[0]) for row in rows("../guides/agents.md", "flag", "what it does")]
    named = {name.split()[0].replace("--no-", "--") for names in table for name in names}
    assert flags
    assert flags <= named


def sources() -> Iterator[str]:
    for folder in ("sdk", "room_server", "toolkits"):
        for path in (ROOT / folder).rglob("*.py"):
            yield path.read_text(encoding="utf-8")


def test_settings_tables_have_every_variable() -> None:
    shown = {name for row in rows("settings.md", "variable") for name in codes(row[0])}
    read = {name for text in sources() for name in re.findall(r"TOOLBUS_[A-Z_]+\b", text)}
    # Those that a comment names to explain why they are not read.
    own = {name for name in shown if "_TEST_" not in name and "<" not in name}
    assert own == read - {
        "TOOLBUS_GATEWAY_PORT",
        "TOOLBUS_HOST",
        "TOOLBUS_PORT",
    }


@pytest.mark.parametrize("module", ["toolbus", "toolbus_server.testing"])
def test_every_public_name_is_on_one_page_of_the_api(module: str) -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (REFERENCE / "api").glob("*.md"))
    shown = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    names: list[str] = import_module(module).__all__
    if module not in shown:
        prefix = f"{module}."
        found = [name.removeprefix(prefix) for name in shown if name.startswith(prefix)]
        assert sorted(name for name in found if "." not in name and name in names) == sorted(names)
