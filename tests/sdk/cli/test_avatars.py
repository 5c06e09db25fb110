"""`--avatar NAME`: what its agent gets, beside the other flags."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolbus.cli import agent_options
from toolbus.cli.agent_options import AgentChoices, agent_of, read_avatar
from toolbus.cli.completion import complete_avatar
from toolbus.diagnostics.exit_codes import UsageError

NOTHING = {
    "path": Path("clerk.yaml"),
    **dict.fromkeys(("instructions", "model"), ""),
    **dict.fromkeys(("skills", "toolkits", "require", "offer", "denied_tools", "notes"), ()),
    "available": True,
}


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "replies.jsonl").write_text('{"text": "hi"}\n')
    return f"scripted:{tmp_path / 'replies.jsonl'}"


def install(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    found = SimpleNamespace(**NOTHING | facts)
    package = SimpleNamespace(name="bundles", load=lambda: lambda name: found)
    monkeypatch.setattr(agent_options, "entry_points", lambda group: [package])


def test_a_toolkit_with_settings_of_its_operator_is_not_started_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = ("clock", "mcp", "openapi", "skills", "sql")
    install(monkeypatch, toolkits=installed, require=("sql", "ledger"))
    pieces = read_avatar("clerk")
    assert [toolkit.name for toolkit in pieces.always] == ["clock"]
    assert pieces.require == ("mcp", "openapi", "skills", "sql", "ledger")
    assert "toolkit sql has settings: host it with `toolbus host sql`" in pieces.notes


def test_flags_win_over_an_avatar_lists_add_up_and_denials_stay(
    monkeypatch: pytest.MonkeyPatch, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    install(
        monkeypatch,
        instructions="@secrets.txt",
        offer=("clock", "skills"),
        denied_tools=("sql.query",),
        notes=("a note",),
    )
    agent = agent_of(None, AgentChoices(model=script, avatar="clerk"), name="clerk")
    assert agent.instructions == "@secrets.txt"
    assert "note: a note" in capsys.readouterr().err
    choices = AgentChoices(
        model=script,
        avatar="clerk",
        instructions="Mine.",
        offer=["toolbus_toolkits.clock:clock"],
        mode="bypass",
    )
    agent = agent_of(None, choices, name="clerk")
    assert agent.instructions == "Mine."
    assert [builder.name for builder in agent.builders] == ["clock", "skills"]
    assert agent.permissions is not None
    assert [str(rule) for rule in agent.permissions.rules] == ["deny sql.query (clerk.yaml)"]


def test_a_model_of_an_avatar_is_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, model="openai:gpt")
    with pytest.raises(UsageError, match="--model NAME; the avatar suggests openai:gpt"):
        agent_of(None, AgentChoices(avatar="clerk"), name="clerk")


def test_without_a_package_that_keeps_avatars_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_options, "entry_points", lambda group: [])
    with pytest.raises(UsageError, match=r"pip install 'toolbus\[bundles\]'"):
        read_avatar("clerk")


def test_installed_avatars_are_completed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path))
    assert complete_avatar("") == []
    (tmp_path / "avatars").mkdir()
    for name in ("clerk.yaml", "cook.json", "spy.yaml", "$(id).yaml"):
        (tmp_path / "avatars" / name).touch()
    assert complete_avatar("c") == ["clerk", "cook"]


def test_another_store_takes_the_place_of_ours_and_two_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def store(name: str) -> SimpleNamespace:
        told = SimpleNamespace(**NOTHING | {"instructions": name})
        return SimpleNamespace(name=name, value=f"{name}:read", load=lambda: lambda _: told)

    stores = [store("bundles"), store("theirs")]
    monkeypatch.setattr(agent_options, "entry_points", lambda group: stores)
    assert read_avatar("clerk").instructions == "theirs"
    stores.append(store("others"))
    with pytest.raises(UsageError, match=r"several packages .* others:read, theirs:read"):
        read_avatar("clerk")
