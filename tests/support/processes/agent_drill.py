"""Questions to agents whose parts are killed: what is drawn, the processes, and how each ended."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple

from support.processes.agent_parts import NAMES, POINTS
from support.processes.launch import clean_environment
from support.processes.ledger import MAYBE, NO, Ledger
from toolbus_server.testing import TestServer, running_server

ASKED_AT_ONCE = 6
CONVERSATIONS = 8
KILL_EVERY = 8
"""Of so many questions one names a point and a part that is killed there."""
HANGS_AFTER_S = 600
"""Longer than any restart on a loaded machine takes."""
Facts = Mapping[str, Any]


class Question(NamedTuple):
    """A question that is drawn."""

    facts: dict[str, Any]
    victim: str | None
    """The part that is killed at its point."""
    waits: bool
    """Whether it is asked only when all parts are there."""

    @property
    def place(self) -> tuple[Any, ...]:
        """Its conversation: the name, and which agent has it with whom."""
        return tuple(self.facts[name] for name in ("conversation", "through", "relayed"))


class Part:
    """A process that is started again after it was killed."""

    def __init__(
        self, command: list[str], log: Path, handle: Callable[[Part, Facts], None]
    ) -> None:
        self._command = command
        self._log = log
        self._handle = handle
        self.ready = asyncio.Event()
        self._ended_by_itself = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        variables = clean_environment() | {"PYTHONPATH": os.pathsep.join(sys.path)}
        pipe = asyncio.subprocess.PIPE
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=self._log.parent,
                env=variables,
                stdin=pipe,
                stdout=pipe,
                stderr=log,
            )
        self._reading = asyncio.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                facts = json.loads(line)
                if "ready" in facts:
                    self.ready.set()
                else:
                    self._handle(self, facts)
        finally:
            if process is self._process:
                self._ended_by_itself.set()

    async def stay(self) -> None:
        """Raise when it ends without being killed."""
        await self._ended_by_itself.wait()
        raise AssertionError(f"{self._log}: {self._log.read_text()[-4_000:]}")

    def send(self, **facts: Any) -> None:
        """Write a line, which is lost if the process is killed."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps(facts).encode() + b"\n")

    async def kill(self) -> None:
        """Kill it, and read what it has written."""
        self.ready.clear()
        process, self._process = self._process, None
        if process is not None and self._reading is not None:
            process.kill()
            await process.wait()
            await self._reading


class Drill:
    """Questions, the parts that answer them, and how each ended."""

    def __init__(self, server: TestServer, folder: Path, port: int, seed: str) -> None:
        self._random = random.Random(seed)
        self._keys = count()
        self.witness = folder / "witness"
        self.ledger = Ledger(0)
        rests = {"model": [str(port)], "host": [str(self.witness)], "agent": [str(port)]}
        self.parts: dict[str, Part] = {}
        for name, people in NAMES.items():
            tokens = json.dumps({person: server.token(person, room="lab") for person in people})
            program = ["-m", "support.processes.agent_parts", name, server.url, tokens]
            command = [sys.executable, *program, *rests.get(name, [])]
            self.parts[name] = Part(command, folder / f"{name}.log", self._handle)
        self._victims: dict[int, str] = {}
        self._asked: dict[int, asyncio.Future[Facts | None]] = {}
        self._places: set[tuple[Any, ...]] = set()
        """All conversations."""
        self._answered: dict[Any, int] = {}
        """The key of the last question that was answered in each conversation."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.faults: list[str] = []
        self.kills: Counter[str] = Counter()
        self.kill_points: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()

    def questions(self, number: int) -> Iterator[Question]:
        """Draw questions, and what happens to them."""
        draw = self._random
        pairs: list[tuple[str, str]] = []
        for n in range(number):
            at, victim = "", None
            if n % KILL_EVERY == KILL_EVERY - 1:
                pairs = pairs or draw.sample([*product(POINTS, NAMES)], len(POINTS) * len(NAMES))
                at, victim = pairs.pop()
            through = int(draw.random() < 0.25)
            yield self._question(at, victim, through, relayed=not through and draw.random() < 0.2)

    def _question(self, at: str, victim: str | None, through: int, *, relayed: bool) -> Question:
        keys = [next(self._keys) for _ in range(self._random.choice([1, 1, 2, 3]))]
        self.ledger.outcomes += [None] * len(keys)
        self.ledger.idempotent += bytes(len(keys))
        facts = {
            "key": keys[0],
            "keys": keys,
            "at": at,
            "through": through,
            "relayed": relayed,
            "conversation": f"c{self._random.randrange(CONVERSATIONS)}",
            "after": None,
        }
        return Question(facts, victim, self._random.random() < 0.9)

    async def ask_all(self, number: int) -> None:
        """Ask, several at a time, until each question has ended."""
        drawn = self.questions(number)

        async def ask_repeatedly() -> None:
            for question in drawn:
                await self.ask(question)

        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(part.stay()) for part in self.parts.values()]
            await asyncio.wait([group.create_task(ask_repeatedly()) for _ in range(ASKED_AT_ONCE)])
            for watch in watching:
                watch.cancel()

    async def ask(self, question: Question) -> Facts | None:
        if question.waits:
            await self._until_ready()
        key = question.facts["key"]
        self._places.add(question.place)
        if question.victim is not None:
            self._victims[key] = question.victim
        asked = question.facts | {"after": self._answered.get(question.place)}
        await self.parts["asker"].ready.wait()
        self._asked[key] = asyncio.get_running_loop().create_future()
        self.parts["asker"].send(**asked)
        try:
            async with asyncio.timeout(HANGS_AFTER_S):
                record = await self._asked[key]
        except TimeoutError:
            raise AssertionError(f"{asked} does not end; {self.summary()}") from None
        del self._asked[key]
        if record is not None and record["end"] == "done":
            self._answered[question.place] = key
        self._note(question, record)
        return record

    async def _until_ready(self) -> None:
        while not all(part.ready.is_set() for part in self.parts.values()):
            for part in self.parts.values():
                await part.ready.wait()

    def _note(self, question: Question, record: Facts | None) -> None:
        """Write down of each call what is known of it."""
        keys = question.facts["keys"]
        if record is None:
            self.ends["asker killed"] += 1
            outcomes = [MAYBE] * len(keys)
        else:
            code, executed, _ = record["error"] or ("", "", "")
            self.ends[f"{code} {executed}".strip() or record["end"]] += 1
            results = record["results"]
            passed_on = results.get(f"call_{10 * keys[0] + 1}_0")
            own = [results.get(f"call_{10 * keys[0]}_{n}") for n in range(len(keys))]
            if record["end"] is not None and not question.facts["through"] and None in own:
                self.faults.append(f"{question.facts}: a use has no result: {record}")
            none_ran = "no" in (executed, passed_on)
            outcomes = [NO if none_ran else each or MAYBE for each in own]
        for key, outcome in zip(keys, outcomes, strict=True):
            self.ledger.note(key, outcome)

    def _handle(self, part: Part, facts: Facts) -> None:
        match facts:
            case {"at": point, "key": key}:
                task = asyncio.create_task(self._reach(part, point, key))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case {"ended": key, "record": record}:
                self._asked[key].set_result(record)
            case {"fault": fault}:
                self.faults.append(fault)

    async def _reach(self, part: Part, point: str, key: int) -> None:
        """Kill the part that is to be killed at this point, and go on."""
        name = self._victims.pop(key, None)
        victim = None if name is None else self.parts[name]
        if name is not None and victim is not None and victim.ready.is_set():
            await victim.kill()
            self.kills[name] += 1
            self.kill_points[point] += 1
            if name == "asker":
                for asked in self._asked.values():
                    if not asked.done():
                        asked.set_result(None)
            await victim.start()
        part.send(go=key)

    async def ask_in_each_conversation(self) -> None:
        """Ask once more, while no part is killed: no conversation is stuck."""
        for conversation, through, relayed in [*self._places]:
            question = self._question("", None, through, relayed=relayed)._replace(waits=True)
            question.facts["conversation"] = conversation
            record = await self.ask(question)
            if record is None or record["end"] != "done":
                self.faults.append(f"{question.facts} is not answered: {record}")

    def summary(self) -> str:
        """Return how many questions ended how, how many calls ran, and what was killed."""
        lines = self.witness.read_text().splitlines() if self.witness.exists() else []
        runs = Counter(line for line in lines if line.startswith("S"))
        twice = sum(times > 1 for times in runs.values())
        return (
            f"{sum(self.ends.values())} questions: {dict(self.ends)}; {len(runs)} calls ran,"
            f" {twice} twice; killed: {dict(self.kills)}, at {dict(self.kill_points)}"
        )

    def check(self) -> None:
        """Compare what the askers got with what ran."""
        self.ledger.check(self.witness)
        assert not self.faults, "\n".join(self.faults[:10])


@asynccontextmanager
async def drill_of(folder: Path, seed: str) -> AsyncIterator[Drill]:
    """Start all parts, and end them with the block."""
    with socket.socket() as kept:  # so that the port stays free while nobody listens
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("127.0.0.1", 0))
        async with running_server() as server:
            drill = Drill(server, folder, kept.getsockname()[1], seed)
            try:
                for part in drill.parts.values():
                    await part.start()
                yield drill
            finally:
                for part in drill.parts.values():
                    await part.kill()
