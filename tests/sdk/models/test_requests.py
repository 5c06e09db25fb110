"""What no adapter puts into a request: impossible schemas, and what is no conversation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from toolbus.models import anthropic, gemini, openai_chat, openai_responses
from toolbus.schemas.forms import GEMINI, schema_form
from toolbus.tools.tool_info import ToolInfo
from toolbus.turns.model_tools import ModelTool

ADAPTERS = [openai_chat, openai_responses, anthropic, gemini]
IMPOSSIBLE: dict[str, Any] = {"type": "object", "not": {}}


def turn(owner: str) -> Any:
    schemas = {"none": IMPOSSIBLE, "good": {"type": "object"}}
    infos = [
        ToolInfo(f"kit.{name}", "", schema, "kit", name, owner=owner)
        for name, schema in schemas.items()
    ]
    shown = [ModelTool(info.name.replace(".", "__"), "", info.input_schema, info) for info in infos]
    return SimpleNamespace(model_tools=shown)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
def test_one_of_this_process_is_refused_and_one_of_others_left_out(
    adapter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=r"kit\.none"):
        adapter.definitions(turn(""))
    (found,) = adapter.definitions(turn("mallory"))
    assert found.get("function", found)["name"] == "kit__good"
    assert "kit.none" in caplog.text


@pytest.mark.parametrize("conversation", ["hello", ["hello"], {"role": "user", "content": "hello"}])
@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
def test_what_is_no_conversation_is_refused(adapter: Any, conversation: Any) -> None:
    nothing = SimpleNamespace(model_tools=[], prompt=lambda: "")
    with pytest.raises(TypeError, match=r"such as \[adapter\.user\(text\)\]"):
        adapter.request(nothing, conversation)


def test_a_schema_without_a_form_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {**IMPOSSIBLE}
    for _ in range(2):
        with pytest.raises(ValueError, match="no object matches"):
            schema_form(schema, GEMINI)
        monkeypatch.setattr("toolbus.schemas.forms._form", None)
