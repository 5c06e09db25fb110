"""The parts of a question, each in a process of its own: model server, host, agents and asker.

Each writes JSON lines to stdout: `{"ready": true}` once it serves, and `{"at": POINT, "key": KEY}`
where a question comes to the point that it names. There it waits for `{"go": KEY}` on stdin, so
that any part can be killed at this point; at "result" it waits for nothing.

A question is a JSON text: `keys` are those of the calls that the model asks for, the first one is
its own; `at` is its point; `through` says how many agents pass it on to another one; `after` is the
key of the last question of its conversation that was answered.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

from support.models.wire_replies import Says, events_of
from support.processes.ledger_host import Witness
from toolbus import (
    Agent,
    JsonChunk,
    ModelRetries,
    RemoteToolkit,
    RequiredToolkit,
    RoomClient,
    RoomException,
    SqliteStateStore,
    ToolContext,
    open_model,
    tool,
)
from toolbus.tools.call_room import CallRoom

POINTS = ("before reply", "in reply", "in tool", "result", "before answer", "in answer")


class Pipes:
    """The lines to and from the test."""

    def __init__(self) -> None:
        self._may_go: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.questions: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def write(self, **facts: Any) -> None:
        os.write(1, json.dumps(facts).encode() + b"\n")

    async def reach(self, point: str, key: int, at: str) -> None:
        """Wait at a point if it is the one of the question."""
        if at == point:
            self.write(at=point, key=key)
            if point != "result":
                await self._may_go[key].wait()

    async def read(self) -> None:
        """Read lines until the test ends; then this process ends too."""
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        async for line in reader:
            facts = json.loads(line)
            if "go" in facts:
                self._may_go[facts["go"]].set()
            else:
                self.questions.put_nowait(facts)
        os._exit(0)


def order_faults(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Give what a strict server refuses in the order of messages."""
    owed: list[str] = []
    before = ""
    for message in messages:
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] not in owed:
                yield f"the result {message['tool_call_id']} has no use"
                continue
            owed.remove(message["tool_call_id"])
        elif owed:
            yield f"the uses {owed} have no result before {role}"
        if role == "user" and before not in ("", "system", "assistant"):
            yield f"user after {before}"
        if role == "assistant":
            if before not in ("user", "tool"):
                yield f"assistant after {before}"
            owed = [call["id"] for call in message.get("tool_calls", ())]
            if not owed and not message.get("content"):
                yield "an empty message"
        before = role
    if owed or before not in ("user", "tool"):
        yield f"the last message is of {before}, and {owed} have no result"


class ModelServer:
    """Chat completions: a question gets a use for each of its keys, and results get an answer."""

    def __init__(self, pipes: Pipes) -> None:
        self._pipes = pipes

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:-2])
            body = json.loads(await reader.readexactly(int(fields["content-length"])))
            faults = list(order_faults(body["messages"]))
            if faults:
                self._pipes.write(fault=f"{faults}: {json.dumps(body['messages'])[-1_500:]}")
                text = json.dumps({"error": {"message": "; ".join(faults)}})
                writer.write(_head("400 Bad Request", "application/json") + _piece(text) + _END)
            else:
                writer.write(_head("200 OK", "text/event-stream"))
                async for piece in self._stream(body):
                    writer.write(_piece(piece))
                    await writer.drain()
                writer.write(_END)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the agent has left
        finally:
            writer.close()

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        messages = body["messages"]
        asked = [json.loads(each["content"]) for each in messages if each["role"] == "user"]
        *earlier, question = asked
        key, at, through = (question[name] for name in ("key", "at", "through"))
        if question["after"] not in (None, *(each["key"] for each in earlier)):
            self._pipes.write(fault=f"{question} begins anew: {earlier}")
        if messages[-1]["role"] == "user":
            await self._pipes.reach("before reply", key, at)
            says, middle = Says("", _uses(question), number=10 * key + through), "in reply"
        else:
            await self._pipes.reach("before answer", key, at)
            says, middle = Says(f"{key} is counted.", number=10 * key + through), "in answer"
        events = [json.dumps(event) for _, event in events_of("openai-chat", says)]
        for number, event in enumerate([*events, "[DONE]"]):
            yield f"data: {event}\n\n"
            if number == len(events) // 2:
                await self._pipes.reach(middle, key, at)


def _uses(question: dict[str, Any]) -> tuple[tuple[str, dict[str, Any]], ...]:
    if question["through"]:
        inner = question | {"through": question["through"] - 1, "after": None}
        return (("helper__ask", {"text": json.dumps(inner)}),)
    return tuple(("ledger__count", {"key": key, "at": question["at"]}) for key in question["keys"])


_END = b"0\r\n\r\n"


def _head(status: str, kind: str) -> bytes:
    fields = f"content-type: {kind}\r\ntransfer-encoding: chunked\r\nconnection: close"
    return f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n".encode()


def _piece(text: str) -> bytes:
    return f"{len(text.encode()):x}\r\n{text}\r\n".encode()


async def answered(room: RoomClient | CallRoom, question: dict[str, Any]) -> dict[str, Any]:
    """Ask, and return how it ended: reason or error, and `executed` of each result by its use."""
    agent = "front" if question["through"] else "helper"
    arguments = {"text": json.dumps(question), "conversation": question["conversation"]}
    record: dict[str, Any] = {"results": {}, "end": None, "error": None}
    try:
        async with room.stream(f"{agent}.ask", arguments, participant=agent) as chunks:
            async for chunk in chunks:
                assert isinstance(chunk, JsonChunk)
                event: Any = chunk.json
                while event["type"] == "progress":  # of an agent that is asked in between
                    event = event["value"]
                if event["type"] == "tool_result":
                    record["results"][event["id"]] = event["executed"]
                elif event["type"] == "end":
                    record["end"] = event["reason"]
    except RoomException as error:
        record["error"] = [error.code, error.executed, str(error)]
    return record


async def run_model(pipes: Pipes, _: Any, port: str) -> None:
    server = await asyncio.start_server(
        ModelServer(pipes).serve, "127.0.0.1", int(port), reuse_port=True
    )
    async with server:
        pipes.write(ready=True)
        await server.serve_forever()


async def run_host(pipes: Pipes, rooms: dict[str, RoomClient], witness: str) -> None:
    file = Witness(witness)

    @tool
    async def count(key: int, at: str) -> int:
        with file.run(key):
            await pipes.reach("in tool", key, at)
        await pipes.reach("result", key, at)
        return key

    @tool
    async def relay(context: ToolContext, question: dict[str, Any]) -> dict[str, Any]:
        """Ask from inside of a tool."""
        return await answered(context.room, question)

    async with rooms["host"].host(RemoteToolkit("ledger", [count, relay])):
        pipes.write(ready=True)
        await asyncio.Event().wait()


async def run_agent(pipes: Pipes, rooms: dict[str, RoomClient], port: str) -> None:
    model = open_model("openai-chat:stub", f"http://127.0.0.1:{port}/v1", max_retries=0)
    asked = RequiredToolkit("helper", participant="helper", tools=["ask"])
    counted = RequiredToolkit("ledger", tools=["count"])
    async with aclosing(model), AsyncExitStack() as stack:
        for name, required in (("helper", counted), ("front", asked)):
            agent = Agent(
                *(rooms[name], model),
                name=name,
                required=[required],
                available=False,
                model_middlewares=[ModelRetries(attempts=4, backoff_s=0.3)],
                store=SqliteStateStore(f"{name}.db"),
            )
            await stack.enter_async_context(agent)
        pipes.write(ready=True)
        await asyncio.Event().wait()


async def run_asker(pipes: Pipes, rooms: dict[str, RoomClient]) -> None:
    room = rooms["asker"]

    async def ask(question: dict[str, Any]) -> None:
        if question["relayed"]:
            record: Any = {"results": {}, "end": None}
            try:
                chunk = await room.invoke("ledger.relay", {"question": question})
                record = chunk.value
            except RoomException as error:
                record["error"] = [error.code, error.executed, str(error)]
        else:
            record = await answered(room, question)
        pipes.write(ended=question["key"], record=record)

    pipes.write(ready=True)
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(ask(await pipes.questions.get()))


RUNS: dict[str, Any] = {
    "model": run_model,
    "host": run_host,
    "agent": run_agent,
    "asker": run_asker,
}
NAMES = {"model": (), "host": ("host",), "agent": ("helper", "front"), "asker": ("asker",)}
"""The participants that each part is."""


async def main(part: str, url: str, tokens: str, *rest: str) -> None:
    pipes = Pipes()
    async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
        group.create_task(pipes.read())
        rooms = {}
        for name, token in json.loads(tokens).items():
            client = RoomClient(url, room="lab", token=token)
            rooms[name] = await stack.enter_async_context(client)
        await RUNS[part](pipes, rooms, *rest)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
