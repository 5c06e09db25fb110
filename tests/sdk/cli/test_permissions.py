"""`toolbus permissions`: checks rule files, and shows what they would decide."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.documents.pages import pages
from support.documents.snippets import steps_of
from support.processes.command_line import CommandLine
from toolbus.permissions.rule_file import rule_file_schema
from toolbus.records.call_record import CallRecord
from toolbus.records.recording import MAX_ARGUMENT_CHARS, whole_arguments
from toolbus.records.records import Records

SHELL = """
from toolbus import Assessment, Rule, Toolkit, tool

@tool
def run(command: str) -> str:
    raise AssertionError("nothing is run")

class Shell(Toolkit):
    async def assess(self, context, name, arguments, patterns=()):
        command = arguments["command"]
        commands = command.split(" && ")
        return Assessment(
            "pass",
            read_only=command == "ls",
            message=f"runs {command}",
            matches=tuple(pattern for pattern in patterns if command.startswith(pattern)),
            parts=tuple(
                tuple(pattern for pattern in patterns if part.startswith(pattern))
                for part in commands if len(commands) > 1
            ),
            suggestions=tuple(
                Rule(behavior="allow", tool="shell.run", match=part) for part in commands
            ),
        )

shell = Shell("shell", [run])
"""
RULES = """\
mode = "default"
trusted_owners = ["bob"]

[[rule]]
behavior = "deny"
tool = "shell.run"
match = "rm"

[[rule]]
behavior = "allow"
match = "make"
principal = "ann"
"""


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("permissions")
    (folder / "shell_tools.py").write_text(SHELL, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url), here.at(url).hosting("shell_tools:shell", "--name", "bob"):
        yield here.at(url)


@pytest.fixture
def here(tmp_path: Path) -> CommandLine:
    (tmp_path / "rules.toml").write_text(RULES, encoding="utf-8")
    return CommandLine(tmp_path)


def test_a_file_is_checked_and_a_mistake_named_with_its_line(here: CommandLine) -> None:
    checked = here.run("permissions", "check", "rules.toml")
    assert checked.out == (
        "rules.toml: mode default; rules: 1 deny, 0 ask, 1 allow\n"
        "  match: only tools with patterns of their own compare it, such as shell.run; "
        "`toolbus host --policy` logs each rule that covers no call\n"
        "  trusts: bob\n"
    )
    facts = here.value_here("permissions", "check", "rules.toml", "--json")
    assert facts["rules"] == {"deny": 1, "ask": 0, "allow": 1}
    (here.folder / "wrong.toml").write_text("mod = 1")
    for command in (("check", "wrong.toml"), ("try", "wrong.toml", "shell.run")):
        refused = here.run_here("permissions", *command)
        assert refused.code == 2
        assert "wrong.toml:1: unknown key 'mod': did you mean mode?" in refused.err
    told = here.run_here("permissions", "check", "wrong.toml", "--json")
    assert told.error["details"] == {"path": "wrong.toml", "line": 1}
    assert here.value_here("permissions", "schema") == rule_file_schema()


def test_the_page_of_rule_files_shows_a_file_its_keys_and_a_mistake(here: CommandLine) -> None:
    """That is `docs/reference/rule-files.md`."""
    page = next(page for page in pages() if page.path.name == "rule-files.md")
    (here.folder / "shown.toml").write_text(page.of("toml")[0].text)
    checked = here.value_here("permissions", "check", "shown.toml", "--json")
    assert checked["rules"] == {"deny": 1, "ask": 0, "allow": 1}
    (here.folder / "wrong.toml").write_text(RULES.replace("match", "mtach"))
    (step,) = steps_of(page.of("console")[0])
    refused = here.run_here(*step.command.split()[1:])
    assert tuple(refused.err.splitlines()) == step.prints
    schema = rule_file_schema()
    keys = [*schema["properties"], *schema["$defs"]["RuleKeys"]["properties"]]
    assert re.findall(r"^\| `(\w+)` \|", page.text, re.MULTILINE) == keys


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["command=rm x"], 'deny: The rule deny shell.run "rm" (rules.toml:4) denies this call.'),
        (["command=ls"], "allow: shell.run changes nothing with this input."),
        (["command=make x"], "ask: No rule allows this call, and the mode default asks about it;"),
        (["command=make x", "--on-behalf-of", "bob"], "ask: No rule allows this call"),
        (["command=make x && dig y", "--name", "ann"], "ask: Not each part of this call has a"),
        (["command=do x && make x"], "ask: No rule allows this call, and the mode default asks"),
        (["command=make x", "--name", "ann"], 'allow: The rule allow * "make"'),
        (["command=make x", "--name", "ann", "--policy"], 'allow: The rule allow * "make"'),
    ],
)
def test_a_tool_in_a_room_is_asked_about_this_very_input(
    toolbus: CommandLine, typed: list[str], expected: str
) -> None:
    (toolbus.folder / "rules.toml").write_text(RULES, encoding="utf-8")
    found = toolbus.run_here(
        "permissions", "try", "rules.toml", "shell.run", *typed, "--room", "main"
    )
    assert found.code == 0, found.err
    assert found.out.startswith(expected)
    if expected.startswith("ask"):
        covers = "a part of it" if "&&" in typed[0] else "it"
        assert f'would allow {covers}: allow shell.run "make x" owner="bob"' in found.out
    assert found.err == ""


@pytest.mark.parametrize(
    ("typed", "behavior", "by"),
    [
        ([], "deny", 'rule deny shell.run "rm" (rules.toml:4)'),
        (["--matches", "make"], "ask", "mode default"),
        (["--matches", "make", "--name", "ann"], "allow", 'rule allow * "make" principal="ann"'),
        (["--matches", "rm", "--read-only"], "deny", 'rule deny shell.run "rm" (rules.toml:4)'),
        (["--matches", "x", "--read-only"], "allow", "tool"),
        (["--matches", "x", "--read-only", "--approval"], "ask", "tool"),
        (["--matches", "x", "--read-only", "--participant", "eve"], "deny", "rule deny"),
        (["--matches", "x", "--read-only", "--participant", "eve", "--policy"], "allow", "tool"),
    ],
)
def test_without_a_room_flags_decide_and_that_is_said(
    here: CommandLine, typed: list[str], behavior: str, by: str
) -> None:
    command = ("permissions", "try", "rules.toml", "shell.run", "command=x", *typed)
    facts = here.value_here(*command, "--json")
    assert facts["behavior"] == behavior
    assert facts["by"].startswith(by)
    assert facts["asked"] is False
    assert "the tool is not known here" in here.run_here(*command).err


def recorded(path: Path) -> None:
    """Record calls of last week, of last year, and such that cannot be judged."""
    with Records.sqlite(path, arguments=True) as records:
        for command, caller, days in [
            ("ls", "ann", 1), ("ls", "ann", 2), ("make x", "ann", 3), ("make x", "eve", 3),
            ("rm x", "eve", 4), ("rm -r y", "eve", 5), ("ls", "eve", 20),
        ]:  # fmt: skip
            began, arguments = time.time() - days * 86_400, json.dumps({"command": command})
            record = CallRecord("shell.run", began, 0.1, "ok", "yes", caller, "dev", owner="bob")
            records.record(replace(record, arguments=arguments))
        began = time.time()
        record = CallRecord("shell.run", began, 0, "ok", "yes")
        for kept in (None, '{"command": "rm …', '{"command": "%s…"}' % ("x" * 499)):
            records.record(replace(record, arguments=kept))
        records.record(replace(record, decision="denied", decided_by="grant", arguments="{}"))


def test_recorded_calls_are_decided_again_by_asking_their_tools(toolbus: CommandLine) -> None:
    (toolbus.folder / "rules.toml").write_text(RULES, encoding="utf-8")
    recorded(toolbus.folder / "old.db")
    command = ("permissions", "try", "rules.toml", "--records", "old.db", "--since", "7d")
    found = toolbus.value_here(*command, "--room", "main", "--json")
    assert [tuple(each.values()) for each in found["decided"]] == [
        ("shell.run", "allow", "tool", 2),
        ("shell.run", "deny", 'rule deny shell.run "rm" (rules.toml:4)', 2),
        ("shell.run", "allow", 'rule allow * "make" principal="ann" (rules.toml:9)', 1),
        ("shell.run", "ask", "mode default", 1),
    ]
    assert found["not_judged"] == {
        "their arguments were cut": 2,
        "their arguments were not kept": 1,
        "they were refused for another reason": 1,
    }
    table = toolbus.run_here(*command)
    assert table.out.splitlines()[0].split() == ["calls", "tool", "behavior", "decided", "by"]
    assert "not judged: 2 calls, because their arguments were cut\n" in table.err
    assert "the tool is not known here" in table.err


@pytest.mark.parametrize("by", ['rule deny shell "rm"', "mode default", "tool"])
def test_what_the_policy_of_a_host_refused_is_decided_again(here: CommandLine, by: str) -> None:
    path = here.folder / "refused.db"
    with Records.sqlite(path, arguments=True) as records:
        record = CallRecord("shell.run", time.time(), 0, "permission_denied", "no")
        refused = replace(record, decision="denied", decided_by=f"policy: {by}")
        records.record(replace(refused, arguments='{"command": "ls"}'))
    command = ("permissions", "try", "rules.toml", "--records", path.name, "--policy", "--json")
    found = here.value_here(*command)
    assert [each["calls"] for each in found["decided"]] == [1]
    assert found["not_judged"] == {}


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ([], "name a tool and its arguments, or records"),
        (["shell.run", "--since", "7d"], "name a tool and its arguments, or records"),
        (["shell.run", "--room", "main", "--read-only"], "are for decisions without a room"),
        (["--records", "x.db", "--name", "ann"], "the calls say who called what"),
        (["--records", "x.db", "--since", "soon"], "--since 'soon' is no time"),
        (["a b", "--records", "x.db"], "is not a tool pattern"),
        (["shell", "command=rm"], "shell is not a tool: write toolkit.tool"),
    ],
)
def test_what_cannot_be_tried_exits_with_2(here: CommandLine, typed: list[str], words: str) -> None:
    refused = here.run_here("permissions", "try", "rules.toml", *typed)
    assert refused.code == 2
    assert words in refused.err


@pytest.mark.parametrize(
    ("arguments", "is_whole"),
    [
        ({"a": [1, None, {"b": "…"[:0]}], "c": "ends with…"}, True),
        ({"a": "x" * 501}, False),
        ({"a": list(range(60))}, False),
        ({"a": {str(i): 1 for i in range(60)}}, False),
        ({"a": 2**70}, False),
        ({"a": b"x"}, False),
        ({"n" * 600: 1}, False),
        ({str(i): "x" * 400 for i in range(9)}, False),
    ],
)
def test_what_a_record_has_cut_is_not_taken_for_the_arguments(
    arguments: dict[str, object], is_whole: bool
) -> None:
    records = Records.memory(arguments=True)
    with records.recording("shell.run", arguments=arguments):
        pass
    kept = records.calls()[0].arguments
    assert kept is not None
    assert len(kept) <= MAX_ARGUMENT_CHARS
    assert whole_arguments(kept) == (arguments if is_whole else None)
