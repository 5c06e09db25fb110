"""A host, a caller and a person in three processes; a file tells what really ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.processes.approval_parts import WITNESS, Program, program
from toolbus_server.testing import TestServer

_ALL = {"timeout_s": 1, "purpose": "to try it"}


async def ends_of(
    caller: Program, number: int, busy_s: float = 0
) -> dict[str, tuple[Any, list[str]]]:
    ends = {}
    for _ in range(number):
        path, end, seen = await caller.next(busy_s)
        ends[path] = end, seen
    return ends


@pytest.mark.parametrize(
    ("step", "options", "end", "seen", "ran"),
    [
        (["approve"], {}, {"value": "wrote f0"}, "approved", "f0: a\n"),
        (
            ["approve", {"path": "f0", "text": "changed"}],
            {},
            {"value": "wrote f0"},
            "approved",
            "f0: changed\n",
        ),
        (
            ["deny", "not today"],
            {},
            {
                "code": "approval_denied",
                "executed": "no",
                "text": 'a person denied this call, and says: "not today"',
            },
            "denied",
            "",
        ),
        (
            ["wait"],
            {"approval_timeout_s": 0.3},
            {
                "code": "approval_expired",
                "executed": "no",
                "text": "nobody has decided about the call in time",
            },
            "expired",
            "",
        ),
    ],
)
async def test_what_a_person_decides_is_what_runs(  # noqa: PLR0913 - a column each
    server: TestServer,
    tmp_path: Path,
    step: list[Any],
    options: dict[str, Any],
    end: Any,
    seen: str,
    ran: str,
) -> None:
    """HOLD-3, HOLD-6, HOLD-14."""
    witness = tmp_path / "witness"
    witness.touch()
    async with (
        program(server, "host", "host", **{WITNESS: str(witness)}),
        program(server, "ann", "decide", 1, 0, step) as person,
        program(server, "ann", "call", 1, {**_ALL, **options}) as caller,
    ):
        assert await person.next() == ["asked", {"path": "f0", "text": "a"}, "to try it"]
        assert await ends_of(caller, 1) == {"f0": (end, ["open", seen])}
        assert witness.read_text() == ran


async def decided_late(
    server: TestServer, witness: Path, number: int, think_s: float
) -> dict[str, tuple[Any, list[str]]]:
    async with (
        program(server, "host", "host", **{WITNESS: str(witness)}),
        program(server, "ann", "decide", number, think_s, ["approve"]),
        program(server, "ann", "call", number, _ALL) as caller,
    ):
        return await ends_of(caller, number, think_s)


async def test_ten_calls_that_wait_side_by_side_end_as_each_is_decided(
    server: TestServer, tmp_path: Path
) -> None:
    ends = await decided_late(server, tmp_path / "witness", 10, 0.02)
    assert ends == {
        f"f{number}": ({"value": f"wrote f{number}"}, ["open", "approved"]) for number in range(10)
    }
    lines = (tmp_path / "witness").read_text().splitlines()
    assert sorted(lines) == [f"f{number}: a" for number in range(10)]


@pytest.mark.parametrize("think_s", [3, pytest.param(120, marks=pytest.mark.soak)])
async def test_person_may_take_longer_than_every_time_out_of_a_call(
    server: TestServer, tmp_path: Path, think_s: float
) -> None:
    """The time-outs are a second."""
    ends = await decided_late(server, tmp_path / "witness", 1, think_s)
    assert ends == {"f0": ({"value": "wrote f0"}, ["open", "approved"])}
    assert (tmp_path / "witness").read_text() == "f0: a\n"
