"""Jobs of the toolkit `shell`: whose they are, what is kept of them, and how they end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.patience import PATIENCE_S
from support.processes.held_pipe import held_pipe
from toolbus import Participant, Permissions, Rule, ToolContext, ToolFailed, ToolUse, Turn
from toolbus_toolkits.shell import Shell, jobs

ANN = Participant(id="1", name="ann")
BEN = Participant(id="2", name="ben")


class _Jobs:
    """The jobs of a shell, as a caller sees them."""

    def __init__(self, workdir: Path, **options: Any) -> None:
        self.toolkit = Shell(workdir, **options)

    async def call(self, tool: str, context: ToolContext | None = None, **arguments: Any) -> Any:
        context = context or ToolContext(caller=ANN)
        return (await self.toolkit.execute(context, tool, arguments)).value

    async def begin(self, command: str, context: ToolContext | None = None) -> str:
        started = await self.call("run", context, command=command, background=True)
        job: str = started["job"]
        return job

    async def ended(self, job: str) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while (page := await self.call("read", job=job))["running"]:
                await self.call("run", command="true")
        return page


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[_Jobs]:
    made = _Jobs(tmp_path, max_jobs=2)
    async with Turn(None, always=[made.toolkit]):
        yield made


async def test_a_job_goes_on_after_its_call_and_ends_by_itself(shell: _Jobs) -> None:
    job = await shell.begin("read a; echo got $a; read b; echo end; exit 4")
    assert await shell.call("write", job=job, text="one\n") == {"waiting": False}
    assert await shell.call("write", job=job, text="") == {"waiting": False}
    page = await shell.ended(job)
    assert (page["text"], page["exit"]) == ("got one\nend\n", 4)
    with pytest.raises(ToolFailed, match=f"the job {job} has ended"):
        await shell.call("write", job=job, text="more")
    assert (await shell.call("stop", job=job))["exit"] == 4


async def test_stop_ends_all_that_a_job_started(shell: _Jobs, tmp_path: Path) -> None:
    line = "exec >held; trap '' TERM HUP; setsid sleep 60 & sleep 60 & echo ready; cat"
    async with asyncio.timeout(PATIENCE_S), held_pipe(tmp_path / "held") as held:
        job = await shell.begin(line)
        assert await held.readline() == b"ready\n"
        ended = await shell.call("stop", job=job)
        assert (ended["running"], ended["exit"]) == (False, 137)
        assert await held.read() == b""


async def test_text_that_a_job_does_not_read_waits_and_is_bounded(
    shell: _Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_WRITE_S", 0)
    job = await shell.begin("sleep 60")
    text = "x" * 65_536
    waiting = [(await shell.call("write", job=job, text=text))["waiting"] for _ in range(2)]
    while not waiting[-1]:
        waiting.append((await shell.call("write", job=job, text=text))["waiting"])
    with pytest.raises(ToolFailed, match="has not read yet"):
        await shell.call("write", job=job, text=text)
    await shell.call("stop", job=job)


async def test_jobs_belong_to_those_behind_the_call(shell: _Jobs) -> None:
    job = await shell.begin("cat")
    others = [ToolContext(caller=BEN), ToolContext(caller=ANN, on_behalf_of=BEN), ToolContext()]
    for context in others:
        assert await shell.call("jobs", context) == []
        for tool, rest in (("read", {}), ("stop", {}), ("write", {"text": "x"})):
            with pytest.raises(ToolFailed, match=f"you have no job {job}") as raised:
                await shell.call(tool, context, job=job, **rest)
            assert raised.value.details["reason"] == "not_found"
    assert await shell.begin("cat", others[0]) == job  # ids say nothing of the jobs of others
    assert [entry["job"] for entry in await shell.call("jobs")] == [job]


async def test_a_caller_and_a_host_run_only_so_many(
    shell: _Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await shell.begin("cat"), await shell.begin("cat")
    with pytest.raises(ToolFailed, match=f"stop one of {first}, {second}"):
        await shell.begin("cat")
    await shell.call("stop", job=first)
    assert await shell.begin("cat") == "3"  # an id is never used again
    monkeypatch.setattr(jobs, "_MAX_RUNNING", 2)
    with pytest.raises(ToolFailed, match="of all callers"):
        await shell.begin("cat", ToolContext(caller=BEN))


async def test_of_jobs_that_have_ended_the_oldest_are_left_out(
    shell: _Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def left() -> list[str]:
        return [entry["job"] for entry in await shell.call("jobs")]

    monkeypatch.setattr(jobs, "_MAX_ENDED_OF_ONE", 2)
    running = await shell.begin("cat")
    for _ in range(3):
        await shell.ended(await shell.begin("echo done"))
    assert await left() == [running, "3", "4"]
    monkeypatch.setattr(jobs, "_MAX_ENDED_CHARS", 100)
    await shell.ended(await shell.begin("seq 1 40"))
    assert await left() == [running, "5"]


async def test_a_job_that_cannot_be_started_takes_no_place(
    shell: _Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_MAX_RUNNING", 1)
    moved = tmp_path.with_name("moved")
    os.rename(tmp_path, moved)
    for _ in range(2):
        with pytest.raises(ToolFailed, match="there is no folder"):
            await shell.begin("cat")
    os.rename(moved, tmp_path)
    assert (await shell.call("jobs"), await shell.begin("cat")) == ([], "3")


async def test_jobs_end_with_the_last_who_uses_the_toolkit(tmp_path: Path) -> None:
    shell = _Jobs(tmp_path)
    async with asyncio.timeout(PATIENCE_S), held_pipe(tmp_path / "held") as held:
        async with Turn(None, always=[shell.toolkit]):
            async with Turn(None, always=[shell.toolkit]):
                job = await shell.begin("exec >held; echo ready; cat")
                assert await held.readline() == b"ready\n"
            assert (await shell.call("read", job=job))["running"]
        assert await held.read() == b""
    assert await shell.call("jobs") == []


async def test_an_endless_job_goes_on_slowly_and_is_bounded(
    shell: _Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_BURST_BYTES", 1024 * 1024)
    job = await shell.begin("yes")
    size = 0
    async with asyncio.timeout(60):
        while size < 4_000_000:
            size = (await shell.call("read", job=job, offset=2**40))["size"]
            await asyncio.sleep(0)
    page = await shell.call("read", job=job, offset=262_140)
    assert (len(page["text"]), page["next"]) == (4, 262_144)
    page = await shell.call("read", job=job, offset=262_144)
    assert page["text"].splitlines()[0].endswith("characters are not kept any more]")
    assert page["next"] > 1_000_000
    assert (await shell.call("stop", job=job))["bytes"] >= size


@pytest.mark.parametrize(
    ("tool", "arguments", "behavior", "words"),
    [
        ("jobs", {}, "pass", ""),
        ("read", {"job": "1"}, "pass", ""),
        ("stop", {"job": "1"}, "allow", "ends your job 1"),
        ("write", {"job": "1", "text": "rm x\n"}, "ask", "gives text to the job 1: cat"),
        ("write", {"job": "9", "text": "rm x\n"}, "ask", "you have no job 9"),
    ],
)
async def test_only_text_for_a_job_is_asked_about(
    shell: _Jobs, tool: str, arguments: dict[str, Any], behavior: str, words: str
) -> None:
    await shell.begin("cat")
    assessment = await shell.toolkit.assess(ToolContext(caller=ANN), tool, arguments, ["rm:*"])
    assert (assessment.behavior, assessment.immune, assessment.matches) == (behavior, False, ())
    assert assessment.read_only is (tool in ("jobs", "read"))
    assert words in assessment.message


JOBS_THAT_READ_LINES = ("bash", "bash -i", "cd . && sh -s", "bash -c bash", "nice bash +x 2>&1")


@pytest.mark.parametrize("command", JOBS_THAT_READ_LINES)
async def test_text_for_a_shell_is_judged_as_its_lines(tmp_path: Path, command: str) -> None:
    victim = tmp_path / "victim"
    victim.touch()
    rules = [Rule(behavior="deny", tool="shell.run", match="rm:*")]
    permissions = Permissions("bypass", rules=rules)
    async with Turn(None, always=[Shell(tmp_path)], permissions=permissions) as turn:

        async def write(text: str) -> str:
            uses = [ToolUse("1", "shell.write", {"job": "1", "text": text})]
            (result,) = await turn.run(uses)
            return result.state

        await turn.call("shell.run", command=command, background=True)
        assert await write("rm victim\n") == "denied"
        # What goes on in the next text is judged with it.
        assert await write("x=1; r") == "ok"
        assert await write("m victim\n") == "denied"
        assert await write("; echo 'rm'\n") == "ok"
        assert await write("echo 'a\n") == "denied"  # the rest of it is not known
        assert await write("cat <<E\nrm\nE\necho ready; exit\n") == "ok"
        while (page := await turn.call("shell.read", job="1"))["running"]:
            await turn.call("shell.run", command="true")
    assert "ready" in page["text"]
    assert victim.exists()


async def test_texts_for_a_shell_that_are_judged_at_once_do_not_join(shell: _Jobs) -> None:
    job = await shell.begin("bash")
    context = ToolContext(caller=ANN)
    for text in ("r", "m x\n"):
        await shell.toolkit.assess(context, "write", {"job": job, "text": text}, ["rm:*"])
    await shell.call("write", job=job, text="r")
    with pytest.raises(ToolFailed, match="nothing was written, call it again"):
        await shell.call("write", job=job, text="m x\n")
