"""The flags of `toolbus agent`, the agent that they make, and files of groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.processes.command_line import CommandLine
from toolbus import Agent
from toolbus.cli.agent_options import AgentChoices, agent_of
from toolbus.cli.options import RecordChoices
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.turns.builders import builder_infos

KITS = '''
from toolbus import Agent, Toolkit, ToolkitBuilder, ToolkitConfig, open_model, tool

@tool(read_only=True)
def count() -> int:
    """Count."""
    return 7

counters = Toolkit("counters", [count])
number = 7
agent = Agent(None, open_model("scripted:replies.jsonl"))

class Named(ToolkitBuilder[ToolkitConfig]):
    async def make(self, room, model, config):
        return Toolkit("named", [count])

named = Named("named", ToolkitConfig)
'''
MODEL = "scripted:replies.jsonl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("options")
    (folder / "agent_kits.py").write_text(KITS, encoding="utf-8")
    replies = '{"uses": [{"name": "groups.reset_tools", "arguments": {"counts": true}}]}\n'
    replies += '{"uses": [{"name": "counters.count"}]}\n{"text": "Seven."}\n'
    (folder / "replies.jsonl").write_text(replies, encoding="utf-8")
    (folder / "binary").write_bytes(b"\xff")
    (folder / "words.txt").write_text("Be brief.", encoding="utf-8")
    (folder / "large.txt").write_text("é" * 524_289, encoding="utf-8")
    (folder / "rules.toml").write_text('mode = "explore"\n', encoding="utf-8")
    (folder / "mistake.toml").write_text("\nmoed = 1\n", encoding="utf-8")
    (folder / "shop.sqlite").touch()
    with CommandLine(folder).serving():  # makes the development key
        return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "an agent needs a model: give --model NAME"),
        (["--model", "gpt"], "--model: 'gpt' is not the name of a model: write openai:NAME"),
        (["--model", "scripted:none"], "--model: none cannot be read"),
        (["--base-url", "http://h"], "--model: a scripted model takes no base_url"),
        (["--name", "Ann Lee"], "'Ann Lee' cannot be one: a lower-case letter"),
        (["--instructions", "@none"], "--instructions: cannot read none: No such file"),
        (["--instructions", "@binary"], "--instructions: binary is not text in UTF-8"),
        (["--instructions", "@large.txt"], "large.txt is larger than 1,048,576 bytes"),
        (["--require", "Sql"], "--require: 'Sql' is not a toolkit name"),
        (["--require", "sql@"], "--require: 'sql@' names no owner"),
        (["--require", "sql", "--require", "sql@bob"], "two toolkits of this turn are named 'sql'"),
        (["--require", "helper"], "the agent helper cannot require its own toolkit"),
        (["--offer", "clokc"], "no installed toolkit is named 'clokc'"),
        (["--offer", "agent_kits:number"], "agent_kits:number is of type int, not a toolkit"),
        (["--offer", "agent_kits:agent"], "did you mean agent_kits:agent.toolkit?"),
        (["--offer", "agent_kits:count"], "count is a tool, not a toolkit"),
        (["--offer", "clock", "--offer", "clock"], "two builders are named 'clock'"),
        (["--offer", "clock", "--timezone", "Mars"], "--timezone: there is no time zone 'Mars'"),
        (["--offer", "sql"], "toolkit sql needs --database or TOOLBUS_SQL_DATABASE"),
        (["--offer", "sql", "--sql-max-rows", "x"], "--max-rows: Input should be a valid integer"),
        (["--groups", "none"], "--groups: none: the file cannot be read"),
        (["--permissions", "mistake.toml"], "--permissions: mistake.toml:2: unknown key 'moed'"),
        (["--mode", "yolo"], "--mode: mode must be default, accept_edits, explore"),
        (["--trust", "*"], "--trust: '*' must be one name"),
        (["--max-steps", "0"], "'--max-steps'"),
        (["--max-tokens", "many"], "'--max-tokens'"),
        (["--tool-budget", "-1"], "'--tool-budget'"),
        (["--state", "words.txt"], "--state: the file of states"),
        (["--state", "no/states.db"], "No such file or directory; name a file in an existing"),
        (["--avatar", "nobody"], "--avatar: "),
        (["--drain", "-1"], "'--drain'"),
        (["--instance", "x" * 129], "'--instance'"),
        (["--records-days", "3"], "--records-days is for recorded calls"),
        (["surplus"], "Got unexpected extra argument"),
    ],
)
def test_wrong_flag_ends_with_2_and_what_to_do(here: Path, flags: list[str], words: str) -> None:
    if flags and "--model" not in flags:
        flags = ["--model", MODEL, *flags]
    ended = CommandLine(here).run_here("agent", "--name", "helper", "--no-wait", *flags)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err


def test_name_that_is_not_the_tokens_is_refused(here: Path) -> None:
    line = CommandLine(here)
    token = line.run_here("token", "create", "--name", "eve", "--preset", "agent").out.strip()
    ended = line.run_here("agent", "--model", MODEL, "--name", "helper", TOOLBUS_TOKEN=token)
    assert ended.code == 2
    assert "--name 'helper': the token (TOOLBUS_TOKEN) is one for 'eve': leave out" in ended.err


@pytest.mark.parametrize(
    ("mode", "is_warned"),
    [(0o600, False), (0o644, True), (0o640, True), (0o604, True), (0o700, False), (None, False)],
)
def test_a_state_file_that_others_can_read_is_warned_of(
    mode: int | None, is_warned: bool, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    states, calls = here / "my states.db", here / "my calls.db"
    for path in (states, calls):
        if mode is not None:
            path.touch()
            path.chmod(mode)
    words = "{}: other users can read {}: chmod 600 '{}'\n".format
    chosen(state=states)
    assert capsys.readouterr().err == words("--state", states, states) * is_warned
    records = RecordChoices(records_file=calls).open()
    assert records is not None
    assert capsys.readouterr().err == words("--records-file", calls, calls) * is_warned


def chosen(**choices: Any) -> Agent:
    return agent_of(None, AgentChoices(model=MODEL, **choices), name="helper")


def test_flags_make_the_agent(here: Path) -> None:
    offers = ["clock", "agent_kits:counters", "agent_kits:named"]
    rules = Path("rules.toml")
    made = chosen(offer=offers, instructions="@words.txt", description="Tells.", permissions=rules)
    assert [each.name for each in made.builders] == ["clock", "counters", "named"]
    assert (made.instructions, made.description) == ("Be brief.", "Tells.")
    assert made.permissions is not None
    assert made.permissions.mode == "explore"
    stricter = chosen(permissions=rules, mode="dont_ask", require=["sql@bob", "kit"])
    assert stricter.permissions is not None
    assert stricter.permissions.mode == "dont_ask"
    assert [(each.name, each.participant) for each in stricter.required] == [
        ("sql", "bob"),
        ("kit", None),
    ]
    assert chosen().permissions is not None, "no agent of a command is without permissions"


def test_variable_of_the_operator_is_closed_to_requests(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLBUS_SQL_DATABASE", "shop.sqlite")
    monkeypatch.setenv("TOOLBUS_SQL_MAX_ROWS", "5")
    (sql,) = builder_infos(chosen(offer=["sql"]).builders)
    fields = sql.schema["properties"]
    assert not fields.keys() & {"database", "max_rows"}


def test_given_flags_are_named() -> None:
    choices = AgentChoices(model="x", available=False, max_steps=3, require=["sql"])
    assert choices.given() == ["--model", "--require", "--no-available", "--max-steps"]


GROUPS = """
[[group]]
name = "counts"
description = "Counts things."
instructions = "Count twice."
toolkits = ["agent_kits:counters"]

[[group]]
name = "times"
description = "Dates and times."
active = true
required = ["calendar@bob"]
offer = ["clock"]
"""


async def test_groups_of_a_file_are_those_of_the_agent(here: Path) -> None:
    path = here / "groups.toml"
    path.write_text(GROUPS, encoding="utf-8")
    made = chosen(groups=path)
    assert [each.name for each in made.builders] == ["clock"]
    assert [each.participant for each in made.required] == ["bob"]
    path.write_text(GROUPS.replace('required = ["calendar@bob"]', ""), encoding="utf-8")
    async with chosen(groups=path) as helper:
        built = (await helper.about(tools=[{"name": "clock"}]))["tools"]
        assert "clock.now" in [each["name"] for each in built]
        events = [
            event
            async for event in helper.run_stream_events("How many?")
            if isinstance(event, dict)
        ]
    results = [(each["tool"], each["text"]) for each in events if each["type"] == "tool_result"]
    assert results[0][0] == "groups.reset_tools"
    assert "Count twice." in results[0][1]
    assert results[1] == ("counters.count", "7")


A = '[[group]]\nname = "a"\n'
B = f'{A}description = "A."\n'


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[[group", 1, "this is not TOML"),
        ("\ngroup = 'a'", 2, "group must be a list, not text: write [[group]]"),
        ("group = ['a']", 1, "a group must be a table, not text: write [[group]]"),
        ("\n[[groups]]", 2, "unknown key 'groups': did you mean group?"),
        ("name = 'a'", 1, "unknown key 'name': write it below a line [[group]]"),
        (A, 1, 'a group must have description = "..."'),
        (f"{A}descripton = 'A.'", 3, "unknown key 'descripton': did you mean description?"),
        (f"{A}description = ' '", 3, "group a: description must say what the group is for"),
        ("[[group]]\nname = 'A'\ndescription = 'A.'", 2, "'A' is not a group name"),
        ("[[group]]\nname = 'basic'\ndescription = 'A.'", 2, "is the turn itself"),
        (f"{B}{B}", 5, "there is a group 'a' already"),
        (f"{B}active = 'yes'", 4, "active must be true or false, not text: write active = true"),
        (
            f"{B}toolkits = 'clock'",
            4,
            'toolkits must be a list, not text: write toolkits = ["..."]',
        ),
        (f"{B}toolkits = [\n'clock',\n5]", 6, "each of toolkits must be text, not a number"),
        (f"{B}toolkits = [\n'clokc']", 5, "no installed toolkit is named 'clokc'"),
        (f"{B}required = ['Sql']", 4, "'Sql' is not a toolkit name"),
        (f"{B}offer = ['agent_kits:none']", 4, "cannot load agent_kits:none"),
        (f"{B}offer = ['sql']", 4, "toolkit sql needs TOOLBUS_SQL_DATABASE"),
    ],
)
def test_mistake_in_a_file_of_groups_is_told_with_its_line(
    here: Path, text: str, line: int, words: str
) -> None:
    path = here / "mistakes.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        chosen(groups=path)
    assert caught.value.message.startswith(f"--groups: {path}:{line}: ")
    assert words in caught.value.message
