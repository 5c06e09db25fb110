"""A stream that is cut anywhere runs nothing but the calls of its reply, with all their arguments.

Streams as servers send them are in `streams`: the name of each says what is odd in it, and its
first line which API it is of, and what runs of the whole.
"""

from __future__ import annotations

import json
import random
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from support.models.cut_streams import check_cut, random_says, random_stream, runnable, sse
from support.models.model_server import Broken, model_server
from support.models.wire_replies import APIS
from toolbus import ModelError, Turn, open_model

STREAMS = sorted((Path(__file__).parent / "streams").glob("*.txt"))
recorded = pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)


def check_streams(api: str, count: int, seed: int) -> None:
    dice = random.Random(seed)
    whole = cut = calls = 0
    for _ in range(count):
        says = random_says(dice)
        stream = sse(random_stream(api, says, dice))
        wanted = [(name, arguments) for _, name, arguments in says.ids()]
        calls += len(wanted)
        whole += check_cut(api, wanted, stream)
        cut += check_cut(api, wanted, stream[: dice.randrange(len(stream))])
    assert cut < whole == calls, f"seed {seed}"


@pytest.mark.parametrize("api", APIS)
def test_random_streams_run_what_they_have(api: str) -> None:
    check_streams(api, 1_000, seed=43)


@pytest.mark.soak
@pytest.mark.parametrize("api", APIS)
def test_many_random_streams_run_what_they_have(api: str) -> None:
    check_streams(api, 10_000, seed=random.randrange(2**32))


def read(path: Path) -> tuple[str, list[tuple[str, Any]], bytes]:
    """Return the API of a stream, what runs of it, and its bytes."""
    first, _, stream = path.read_bytes().partition(b"\n\n")
    told = json.loads(first.removeprefix(b": "))
    return told["api"], [(name, arguments) for name, arguments in told["runs"]], stream


@recorded
def test_a_stream_cut_at_each_byte_runs_what_it_has(path: Path) -> None:
    api, wanted, stream = read(path)
    assert check_cut(api, wanted, stream) == len(wanted)
    for length in range(len(stream)):
        check_cut(api, wanted, stream[:length])


@recorded
async def test_the_clients_read_streams_that_are_cut_as_well(path: Path) -> None:
    api, wanted, stream = read(path)
    dice = random.Random(path.name)
    sent = [stream, *(stream[: dice.randrange(len(stream))] for _ in range(4))]
    head = {"content-type": "text/event-stream"}
    script = [Broken(200, each, head, is_cut=dice.random() < 0.5) for each in sent[1:]]
    async with model_server(Broken(200, stream, head), *script) as server:
        model = open_model(f"{api}:stub", server.url(api), api_key="no-key-123", max_retries=0)
        async with Turn(None) as turn:
            request = model.adapter.request(turn, [model.adapter.user("Empty it.")])
        found = []
        for _ in sent:
            try:
                async with aclosing(model.stream(request)) as events:
                    found.append(runnable(api, [event async for event in events]))
            except ModelError:
                found.append([])
        await model.aclose()
    assert found[0] == wanted
    assert all(each in wanted for ran in found for each in ran)
