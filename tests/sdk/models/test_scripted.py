"""A model whose replies are written in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolbus import Toolkit, Turn, Unavailable, tool
from toolbus.models import open_model, scripted
from toolbus.models.adapter import Model
from toolbus.models.model_error import ModelError
from toolbus.models.scripted_model import ScriptedModel

BROKEN = '{"name": "Bo'
REPLIES = [
    "\n# two tools at once: one by its name, one by that for providers",
    {
        "text": "I greet them both.",
        "uses": [
            {"name": "people.greet", "arguments": {"name": "Ada"}},
            {"name": "people__greet", "arguments": BROKEN},
        ],
    },
    {"uses": [{"name": "people.greet", "arguments": [1]}, {"name": "people.nobody"}]},
    "  ",
    {"text": "Done.\u2028Really."},
]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    path = tmp_path / "replies.jsonl"
    lines = [
        each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in REPLIES
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return open_model(f"scripted:{path}")


def people() -> Toolkit:
    @tool
    async def greet(name: str) -> str:
        """Greet."""
        return f"hello {name}"

    return Toolkit("people", [greet])


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_conversation_runs_through_the_file(model: Model, is_streamed: bool) -> None:
    adapter = model.adapter
    async with Turn(None, always=[people()]) as turn:
        for _ in range(2):  # each conversation begins at the start
            conversation = [adapter.user("Greet Ada and Bo.")]
            told: list[Any] = []
            while True:
                asked = adapter.request(turn, conversation, "Be kind.")
                if is_streamed:
                    events = [event async for event in model.stream(asked)]
                    reply = adapter.collect(events)
                    said = "".join(adapter.text_of(event) for event in events)
                    assert said == adapter.text(reply)
                else:
                    reply = await model.reply(asked)
                results = await turn.run(adapter.uses(reply))
                told += [(each.id, each.state) for each in results]
                conversation += adapter.messages(reply, results)
                if not results:
                    break
            assert adapter.text(reply) == "Done.\u2028Really."
            assert told == [
                ("use-1-1", "ok"),
                ("use-1-2", "failed"),
                ("use-2-1", "failed"),
                ("use-2-2", "failed"),
            ]
            assert conversation[2]["results"][0]["text"] == "hello Ada"
            assert asked["system"].startswith("Be kind.")
            assert [each["name"] for each in asked["tools"]] == ["people__greet"]
    await model.aclose()


async def test_a_script_begins_again_after_its_last_reply(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    replies: list[Any] = []
    for _ in range(2 * 3):
        replies.append(await model.reply({"messages": replies}))
    texts = [model.adapter.text(reply) for reply in replies]
    assert texts == ["I greet them both.", "", "Done.\u2028Really."] * 2
    assert [use.id for use in model.adapter.uses(replies[3])] == ["use-4-1", "use-4-2"]
    assert [record.getMessage().partition("replies.jsonl")[2] for record in caplog.records] == [
        " has no more replies: it begins again with the first"
    ]


async def test_a_line_may_be_an_error(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    path.write_text('{"error": "the model is overloaded"}\n', encoding="utf-8")
    with pytest.raises(ModelError, match="the model is overloaded"):
        await ScriptedModel(path).reply({"messages": []})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON: "),
        ('"text"', "a reply must be a JSON object"),
        ("{}", "a reply has text, uses, or both; or else an error"),
        ('{"text": "a", "error": "b"}', "or else an error"),
        ('{"text": 1}', "text and error must be text"),
        ('{"uses": {}}', "uses must be a list"),
        ('{"tools": []}', "a reply has no 'tools', only text, uses, error"),
        ('{"uses": [1]}', "a use must be a JSON object"),
        ('{"uses": [{"arguments": {}}]}', "a use needs the name of a tool"),
        ('{"uses": [{"name": "a.b", "args": {}}]}', "a use has no 'args'"),
        ("[" * 100_000, "nested too deeply"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_a_mistake_is_told_with_its_line(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    path.write_bytes(f'\n{{"text": "a"}}\n{line}\n'.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"replies\.jsonl:3: ") as caught:
        ScriptedModel(path)
    assert words in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        open_model(f"scripted:{tmp_path}/none.jsonl")


def test_a_file_without_a_reply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    path.write_text("# none yet\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"replies\.jsonl has no reply"):
        ScriptedModel(path)


def test_a_stream_that_ended_early_is_an_error() -> None:
    with pytest.raises(ModelError, match="ended before"):
        scripted.collect([{"text": "a"}])


async def test_a_turn_that_is_not_entered_has_no_definitions() -> None:
    turn = Turn(None, always=[Toolkit("people")])
    with pytest.raises(Unavailable, match=r"not entered: async with Turn\(...\) as turn"):
        scripted.request(turn, [scripted.user("Hello")])
