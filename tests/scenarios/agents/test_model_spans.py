"""The requests of an agent to its model, in the trace of the question."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from support.models.event_model import Counting, Model, says
from support.models.model_server import KEY, Broken, model_server
from support.models.wire_replies import APIS, INPUT_TOKENS, OUTPUT_TOKENS, Says
from toolbus import Agent, ModelError, ModelRetries, RoomClient, Toolkit, open_model, tool
from toolbus.telemetry.tracing import Tracing
from toolbus_server.testing import running_server


@tool(read_only=True)
async def count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


@asynccontextmanager
async def traced_agent(
    model: Any, sampler: Sampler = ALWAYS_ON, **options: Any
) -> AsyncIterator[tuple[RoomClient, InMemorySpanExporter]]:
    """Host an agent and a toolkit; all participants and the server record. Yield an asker."""
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with running_server(tracing=Tracing(provider)) as server:

        def room(name: str) -> RoomClient:
            tracing = Tracing(provider)
            return RoomClient(server.url, room="lab", token=server.token(name), tracing=tracing)

        async with room("host") as host, room("helper") as agents, room("ann") as ann:
            async with host.host(Toolkit("words", [count])):
                async with Agent(agents, model, name="helper", required=["words"], **options):
                    yield ann, exporter


async def asked(room: RoomClient, text: str = "how many?") -> list[Any]:
    async with room.stream("helper.ask", {"text": text}, participant="helper") as chunks:
        return [chunk.value async for chunk in chunks]


def drawn(exporter: InMemorySpanExporter) -> list[str]:
    """Return kind and name of each span below its parent, siblings by start."""
    spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def below(parent: int | None, depth: int) -> list[str]:
        lines: list[str] = []
        for span in spans:
            if (span.parent.span_id if span.parent else None) == parent and span.context:
                lines.append(f"{'  ' * depth}{span.kind.name} {span.name}")
                lines += below(span.context.span_id, depth + 1)
        return lines

    return below(None, 0)


def chats(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name.startswith("chat")]


async def test_the_trace_of_a_question_is_one_tree_from_its_asker_to_the_last_tool(
    tmp_path: Path,
) -> None:
    script = tmp_path / "replies.jsonl"
    use = {"name": "words.count", "arguments": {"text": "a secret b"}}
    script.write_text(f"{json.dumps({'uses': [use]})}\n{json.dumps({'text': 'Three.'})}\n")
    async with traced_agent(open_model(f"scripted:{script}")) as (ann, exporter):
        events = await asked(ann, "how many secrets?")
    chat = f"CLIENT chat {script.name}"
    question = [line for line in drawn(exporter) if "ask" in line or line.startswith("        ")]
    assert question == [
        "CLIENT helper.ask",
        "  SERVER helper.ask",
        "    SERVER helper.ask",
        "      INTERNAL execute_tool ask",
        "        INTERNAL invoke_agent helper",
        f"          {chat}",
        "          INTERNAL execute_tool count",
        "            CLIENT words.count",
        "              SERVER words.count",
        "                SERVER words.count",
        "                  INTERNAL execute_tool count",
        f"          {chat}",
    ]
    [trace_id] = {span.context.trace_id for span in chats(exporter) if span.context}
    assert events[-1]["trace"] == f"{trace_id:032x}"
    assert dict(chats(exporter)[0].attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "replies.jsonl",
        "gen_ai.provider.name": "scripted",
    }
    assert not any("secret" in span.to_json() for span in exporter.get_finished_spans())


@pytest.mark.parametrize("api", APIS)
async def test_a_span_names_model_and_provider_and_has_the_tokens(api: str) -> None:
    script: list[Says | Broken] = [Broken(503, b"{}", {"retry-after": "0"}), Says("hello")]
    async with model_server(*script) as server:
        model = open_model(f"{api}:m-1", server.url(api), api_key=KEY, max_retries=0)
        retry = ModelRetries(backoff_s=0)
        async with aclosing(model), traced_agent(model, model_middlewares=[retry]) as traced:
            await asked(traced[0])
    provider = {"anthropic": "anthropic", "gemini": "gcp.gemini"}.get(api, "openai")
    first, last = chats(traced[1])
    assert (first.name, first.status.status_code.name) == ("chat m-1", "ERROR")
    assert (first.attributes or {})["error.type"] == "503"
    assert dict(last.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m-1",
        "gen_ai.provider.name": provider,
        "gen_ai.usage.input_tokens": INPUT_TOKENS,
        "gen_ai.usage.output_tokens": OUTPUT_TOKENS,
    }
    assert last.status.status_code.name == "UNSET"


async def test_a_reply_that_broke_off_has_the_tokens_that_were_told() -> None:
    model = Model([{"text": "a", "tokens": (5, 1)}, ModelError("cut, my secret")])
    model.adapter = Counting()
    async with traced_agent(model) as (ann, exporter):
        with pytest.raises(Exception, match="cut, my secret"):
            await asked(ann)
    [span] = chats(exporter)
    assert (span.name, span.status.status_code.name) == ("chat Model", "ERROR")
    assert span.status.description is None
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "Model",
        "gen_ai.provider.name": "_OTHER",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 1,
        "error.type": "model_error",
    }


async def test_a_question_that_is_left_ends_its_span_without_a_failure() -> None:
    model = Model([{"text": "a"}, None])
    async with traced_agent(model) as (ann, exporter):
        async with ann.stream("helper.ask", {"text": "q"}, participant="helper") as chunks:
            await anext(chunks)
        await ann.invoke("helper.forget", participant="helper")  # waits for the end of the question
    [span] = chats(exporter)
    assert (span.attributes or {})["error.type"] == "cancelled"
    assert span.status.status_code.name == "UNSET"


async def test_a_trace_that_is_not_sampled_has_no_requests_and_no_id() -> None:
    async with traced_agent(Model(says("a")), ALWAYS_OFF) as (ann, exporter):
        events = await asked(ann)
    assert (exporter.get_finished_spans(), events[-1]["trace"]) == ((), None)
