"""The log of commands: its options before and after the command, its form, and what it hides."""

from __future__ import annotations

import json
import logging
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.processes.command_line import CommandLine
from toolbus.cli import app as command_line
from toolbus.cli.app import COMMANDS, make_app
from toolbus.cli.options import log_options
from toolbus.log_output import LEVELS, LogOutput, show_info_of
from toolbus.telemetry.propagation import CALL_ID, enter_call_as_trace

CALL = "0123456789abcdef0123456789abcdef"
PROBE = """
import logging

def probe() -> None:
    for name in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger("shop"), name)("at " + name)
"""
KIT = """
import logging
from toolbus import Toolkit, tool

@tool
def order(item: str) -> str:
    logging.getLogger("shop_kit.orders").info("ordered %s", item)
    logging.getLogger("shop_kit.orders").debug("details")
    logging.getLogger("a_library").info("of a library")
    return item

shop = Toolkit("shop", [order])
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that logs one line at each level."""
    (tmp_path / "log_probe.py").write_text(PROBE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = EntryPoint("probe", "log_probe:probe", COMMANDS)
    monkeypatch.setattr(command_line, "entry_points", lambda group: [entry])


class Unprintable:
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def levels_of(typed: str, **variables: str) -> list[str]:
    before = [*logging.root.handlers], logging.root.level, logging.getLogger("hpack").level
    result = CliRunner().invoke(make_app(), typed.split(), env=variables)
    assert result.exit_code == 0, result.stderr
    after = [*logging.root.handlers], logging.root.level, logging.getLogger("hpack").level
    assert after == before
    return [line.rpartition(" ")[2] for line in result.stderr.splitlines()]


@pytest.mark.usefixtures("probe")
@pytest.mark.parametrize(
    ("typed", "variable", "lines"),
    [
        ("probe --log-level warning", "", ["warning", "error"]),
        ("probe --log-level WARN", "", ["warning", "error"]),
        ("-v probe", "", ["info", "warning", "error"]),
        ("probe -v", "", ["info", "warning", "error"]),
        ("-v probe -v", "", ["debug", "info", "warning", "error"]),
        ("probe -vv", "", ["debug", "info", "warning", "error"]),
        ("--log-level error probe", "", ["error"]),
        ("probe --log-level=ERROR", "", ["error"]),
        ("--log-level debug probe --log-level error", "", ["error"]),
        ("-v probe --log-level error", "", ["error"]),
        ("probe", "Info", ["info", "warning", "error"]),
        ("probe -v", "error", ["info", "warning", "error"]),
        ("probe --log-level error", "none of them", ["error"]),
    ],
)
def test_level_comes_from_the_option_else_from_v_else_from_the_variable(
    typed: str, variable: str, lines: list[str]
) -> None:
    assert levels_of(typed, TOOLBUS_LOG_LEVEL=variable) == lines


@pytest.mark.usefixtures("probe")
@pytest.mark.parametrize(
    ("typed", "variable", "named"),
    [
        ("--log-level loud probe", "", "--log-level"),
        ("probe --log-level loud", "", "--log-level"),
        ("probe --log-level 20", "", "--log-level"),
        ("probe", "loud", "TOOLBUS_LOG_LEVEL"),
        ("probe --log-json", "loud", "TOOLBUS_LOG_LEVEL"),
    ],
)
def test_level_that_is_none_is_a_usage_error_that_names_the_levels(
    typed: str, variable: str, named: str
) -> None:
    env = {"TOOLBUS_LOG_LEVEL": variable, "COLUMNS": "200"}
    result = CliRunner().invoke(make_app(), typed.split(), env=env)
    assert result.exit_code == 2
    assert f"Invalid value for {named}" in result.stderr.replace("'", "")
    assert "is not a level: write debug, info, warning, error or critical" in result.stderr
    assert "at error" not in result.stderr


@pytest.mark.parametrize("command", ["serve", "host", "call a.b", "token create", "context list"])
def test_every_command_has_the_options(command: str) -> None:
    result = CliRunner().invoke(
        make_app(), [*command.split(), "--help-all"], env={"COLUMNS": "200"}
    )
    assert all(option in result.stdout for option in ("--log-level", "-v,", "--log-json"))


def test_guide_has_a_row_for_each_option_and_the_names_of_the_levels() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/logs.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(-[-\w]+)", guide, re.MULTILINE)
    assert rows == [each.opts[0] for each in log_options()]
    [row] = [line for line in guide.splitlines() if line.startswith("| `--log-level")]
    assert re.findall(r"`(\w+)`", row) == list(LEVELS)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("two\nlines\r\x1b[2J\u2028\u202e", ()),
        ("%s", ("\udcff",)),
        ("%d", ("no number",)),
        ("%s", (Unprintable(),)),
        ("x" * 1_000_000, ()),
        ('"}\n{"level": "error"', ()),
    ],
)
def test_json_is_one_object_a_line_whatever_is_logged(
    message: str, arguments: tuple[Any, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    record = logging.LogRecord("shop", logging.ERROR, __file__, 1, message, arguments, None)
    try:
        raise ValueError("first\nsecond\x00")
    except ValueError:
        record.exc_info = sys.exc_info()
    with LogOutput(as_json=True).running():
        logging.root.handlers[-1].handle(record)
    text = capsys.readouterr().err
    assert text.endswith("\n")
    [line] = text[:-1].splitlines()
    assert line.isprintable()
    assert len(line) < 40_000
    facts = json.loads(line)
    assert facts.keys() == {"time", "level", "logger", "message", "exception"}
    assert (facts["level"], facts["logger"]) == ("error", "shop")
    assert "ValueError: first" in facts["exception"]


async def test_json_names_the_call_and_the_trace_that_a_line_belongs_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    CALL_ID.set(CALL)
    enter_call_as_trace(CALL)
    with LogOutput(as_json=True).running():
        logging.getLogger("shop").warning("low")
    facts = json.loads(capsys.readouterr().err)
    assert (facts["call_id"], facts["trace_id"]) == (CALL, CALL)


def test_libraries_that_log_addresses_and_headers_stay_quiet_at_debug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LogOutput(logging.DEBUG).running():
        for name in ("httpx", "httpcore.http11", "urllib3.connectionpool", "mcp.client", "shop"):
            logging.getLogger(name).info("GET /?key=secret")
            logging.getLogger(name).debug("Authorization: secret")
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_level_that_a_toolkit_chose_itself_stays() -> None:
    logging.getLogger("quiet_kit").setLevel(logging.ERROR)
    for name in ("quiet_kit", "usual_kit"):
        show_info_of(name)
    assert logging.getLogger("quiet_kit").level == logging.ERROR
    assert logging.getLogger("usual_kit.part").getEffectiveLevel() == logging.INFO


@pytest.mark.parametrize(
    ("options", "wanted"),
    [([], ["ordered tea"]), (["-vv", "--log-json"], ["ordered tea", "details", "of a library"])],
)
def test_log_of_a_toolkit_is_shown_by_its_host(
    tmp_path: Path, options: list[str], wanted: list[str]
) -> None:
    (tmp_path / "shop_kit.py").write_text(KIT, encoding="utf-8")
    here = CommandLine(tmp_path)
    with (
        here.serving("--dev", *options) as (server, url),
        here.at(url).start("host", "shop_kit:shop", *options) as host,
    ):
        assert host.line().startswith("hosting shop in room main as ")
        assert here.at(url).run_here("call", "shop.order", "item=tea").out == "tea\n"
        log = host.end().err
        served = server.end().err
    texts = [text for text in ("ordered tea", "details", "of a library") if text in log]
    assert texts == wanted
    if options:
        lines = [json.loads(line) for line in log.splitlines()]
        [ordered] = [line for line in lines if line["message"] == "ordered tea"]
        assert len(ordered["call_id"]) == 32
        assert any(line["message"].startswith("hosting toolkit shop in room") for line in lines)
        records = [json.loads(line) for line in served.splitlines()]
        assert any(record["message"].startswith("DEVELOPMENT SERVER") for record in records)
    assert "eyJ" not in log + served  # how each token begins
