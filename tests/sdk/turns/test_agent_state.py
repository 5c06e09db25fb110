"""The state of an agent: saved and read as JSON, and refused with the path of what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolbus import AgentState, GrantedRule, InvalidArguments
from toolbus.turns.agent_state import DefinitionKey

RESULT = (
    '{{"is": "result", "id": "", "tool": "", "state": "ok", "executed": "no", "chunks": ["{}"]}}'
)
GRANTED = '{"tool": "a.b", "own_name": "a.b", "principal": "alice"}'


def test_state_of_an_older_version_is_read_and_written_as_the_newer_one() -> None:
    state = AgentState.from_json('{"version": 1, "state": {"a": {}}, "groups": {"g": true}}')
    assert (state.groups, list(state.rules), state.conversation) == ({"g": True}, [], [])
    assert (state.adapter, state.questions) == ("", [])
    assert json.loads(state.to_json())["version"] == 5


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 4, "conversation": []}',
        '{"version": 4, "conversation": [{"a": ", \\"conversation\\": ["}, {"b": [1, {}]}]}',
        '{"version": 4, "conversation": [{"a": {"b": 1, "conversation": [2]}}]}',
        '{"version": 4, "state": {"n": {"a": 1, "conversation": [1]}}, "conversation": [{}, {}]}',
        '{"version": 4, "conversation": [{}], "conversation": [{}, {"last": 1}]}',
        '{"version": 4, "conversation": [{}, {}], "groups": {"g": true}}',
        '{"version": 4, "conversation": [{},{}]}\n',
        '{"conversation": [{}], "version": 4}',
    ],
)
def test_messages_are_read_as_json_has_them_however_it_is_written(text: str) -> None:
    state = AgentState.from_json(text)
    read = json.loads(text)
    assert state.conversation == read["conversation"]
    assert (state.state, state.groups) == (read.get("state", {}), read.get("groups", {}))
    again = AgentState.from_json(state.to_json())
    assert (again.conversation, again.state) == (state.conversation, state.state)
    for at in range(len(text.rstrip())):
        with pytest.raises(InvalidArguments):
            AgentState.from_json(text[:at])


def test_oldest_granted_rule_is_forgotten_beyond_a_thousand() -> None:
    rules = [
        GrantedRule(tool="a.b", own_name="a.b", principal="alice", match=f"{at}")
        for at in range(1_001)
    ]
    assert list(AgentState(rules=rules).rules) == rules[1:]


def test_state_is_the_same_after_it_was_saved_and_read() -> None:
    state = AgentState()
    state.of("notes")["lines"] = ["ä", 1, None]
    state.of("empty")
    state.rules.add(GrantedRule(tool="a.b", own_name="a.b", principal="ä", match="x"))
    state.conversation.append({"role": "user"})
    state.adapter = "anthropic"
    state.questions += [0, 7]  # there is no message 7: the conversation was cut
    state.definitions.add(DefinitionKey("bob", "iss", "words"), "d1")
    again = AgentState.from_json(state.to_json())
    assert (list(again.rules), again.conversation) == (list(state.rules), [{"role": "user"}])
    assert (again.adapter, again.questions) == ("anthropic", [0])
    assert again.definitions.get(DefinitionKey("bob", "iss", "words")) == "d1"
    assert again.state == {"notes": {"lines": ["ä", 1, None]}, "empty": {}}
    assert again.of("notes") is again.state["notes"]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{", ""),
        ("[" * 100_000, ""),
        (7, ""),
        ("[]", ""),
        ("{}", "/version"),
        ('{"version": 7, "state": {}, "more": 1}', "/version"),
        ('{"version": 5, "parked": null}', "/parked"),
        ('{"version": 6, "parked": 7}', "/parked"),
        ('{"version": 6, "parked": {"uses": [], "more": 1}}', "/parked"),
        ('{"version": 6, "parked": {"uses": [{"is": "open", "id": "1"}]}}', "/parked"),
        ('{"version": 6, "parked": {"uses": [], "progress": {"steps": -1}}}', "/parked"),
        (f'{{"version": 6, "parked": {{"uses": [{RESULT.format("gA==")}]}}}}', "/parked"),
        (f'{{"version": 6, "parked": {{"uses": [{RESULT.format("?")}]}}}}', "/parked"),
        ('{"version": 0}', "/version"),
        ('{"version": 3, "adapter": ""}', "/adapter"),
        ('{"version": 4, "adapter": null}', "/adapter"),
        (f'{{"version": 4, "adapter": "{"a" * 1025}"}}', "/adapter"),
        (r'{"version": 4, "adapter": "\ud800"}', "/adapter"),
        ('{"version": 4, "questions": [0]}', "/questions"),
        ('{"version": 4, "questions": 0}', "/questions"),
        ('{"version": 4, "conversation": [{}, {}], "questions": [1, 0]}', "/questions"),
        ('{"version": 4, "conversation": [{}, {}], "questions": [-1]}', "/questions"),
        ('{"version": 4, "conversation": [{}, {}], "questions": [false, true]}', "/questions"),
        ('{"version": 2, "definitions": []}', "/definitions"),
        ('{"version": 3, "definitions": {}}', "/definitions"),
        (f'{{"version": 3, "definitions": [{", ".join(["0"] * 1001)}]}}', "/definitions"),
        ('{"version": 3, "definitions": [["a", "b", "c"]]}', "/definitions/0"),
        ('{"version": 3, "definitions": [["", "", "c", "d"], "abcd"]}', "/definitions/1"),
        (f'{{"version": 3, "definitions": [["", "", "c", "{"d" * 1025}"]]}}', "/definitions/0"),
        ('{"version": true, "state": {}}', "/version"),
        ('{"version": 1, "rules": []}', "/rules"),
        ('{"version": 2, "rules": {}}', "/rules"),
        (f'{{"version": 2, "rules": [{", ".join(["{}"] * 1001)}]}}', "/rules"),
        ('{"version": 2, "rules": [{"tool": "a.b"}]}', "/rules/0"),
        (f'{{"version": 2, "rules": [{GRANTED}, {{"x": 1}}]}}', "/rules/1"),
        (f'{{"version": 2, "rules": [{GRANTED.replace("a.b", "a.*")}]}}', "/rules/0"),
        ('{"version": 2, "conversation": {}}', "/conversation"),
        ('{"version": 2, "conversation": [NaN]}', "/conversation/0"),
        ('{"version": 1, "more": 1}', "/more"),
        ('{"version": 1, "state": []}', "/state"),
        ('{"version": 1, "state": {"notes": 7}}', "/state/notes"),
        ('{"version": 1, "state": {"a/~": 7}}', "/state/a~1~0"),
        ('{"version": 1, "state": {"notes": {"n": [NaN]}}}', "/state/notes/n/0"),
        ('{"version": 1, "state": {"notes": {"n": 1e999}}}', "/state/notes/n"),
        (f'{{"version": 1, "state": {{"notes": {{"n": {2**64}}}}}}}', "/state/notes/n"),
        (r'{"version": 1, "groups": {"\ud800": true}}', "/groups"),
    ],
)
def test_text_that_is_no_state_is_refused_with_its_path(text: Any, path: str) -> None:
    with pytest.raises(InvalidArguments, match="the state of the agent") as raised:
        AgentState.from_json(text)
    assert raised.value.details["path"] == path


def test_value_that_is_not_json_is_named_by_its_path() -> None:
    state = AgentState({"notes": {"when": {1}, "who": [float("nan")]}})
    with pytest.raises(InvalidArguments) as raised:
        state.to_json()
    assert raised.value.details["path"] == "/state/notes/who/0"
