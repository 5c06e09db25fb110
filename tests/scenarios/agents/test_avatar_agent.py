"""An agent that is an installed avatar: what its model is told, and what it may call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from support.models.model_server import model_server
from support.models.wire_replies import Says
from support.processes.command_line import CommandLine
from toolbus import Toolkit, tool
from toolbus_server.testing import TestServer

BUNDLE = {
    "toolbus-bundle.yaml": 'toolbus_bundle: "1"\nname: office\nversion: "1.0"\n'
    "skills: [letters]\navatars: {clerk: clerk.yaml}\n",
    "letters/SKILL.md": "---\nname: letters\ndescription: Writes letters.\n---\nDear all,\n",
    "taxes/SKILL.md": "---\nname: taxes\ndescription: Counts taxes.\n---\n",
    "clerk.yaml": "instructions: '@/etc/hostname is a file, be polite.'\nskills: [letters]\n"
    "toolkits: [clock]\nrequire: [ledger]\ndenied_tools: [ledger.wipe]\navailable: false\n"
    "nickname: Bo\nmodel: openai:gpt\n",
}


@tool(read_only=True)
async def read() -> str:
    return "42 crowns"


@tool
async def wipe() -> None:
    raise AssertionError


async def test_an_installed_avatar_gives_its_agent_instructions_skills_and_tools(
    server: TestServer, tmp_path: Path
) -> None:
    for path, text in BUNDLE.items():
        (tmp_path / "office" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "office" / path).write_text(text)
    here = CommandLine(
        tmp_path,
        {"TOOLBUS_URL": server.url, "TOOLBUS_TOKEN": server.token("ann"), "TOOLBUS_ROOM": "lab"},
    )
    assert here.run_here("bundle", "install", "office", "--yes").code == 0
    uses: Any = (
        ("skills__view_skill", {"name": "letters"}),
        ("ledger__wipe", {}),
        ("ledger__read", {}),
    )
    ledger = Toolkit("ledger", [read, wipe])
    async with (
        model_server(Says(uses=uses), Says("Done.")) as model,
        server.room("host") as room,
        room.host(ledger),
        room.host(Toolkit("other", [read])),
    ):
        flags = ("--model", "openai-chat:stub", "--base-url", model.url("openai-chat"))
        question = ("chat", "--avatar", "clerk", "--once", "Write to ann.", "--mode", "bypass")
        with here.start(*question, *flags) as chat:
            asked = await asyncio.to_thread(chat.ended)
        (tmp_path / "replies.jsonl").write_text('{"text": "?"}')
        twice = ("--require", "ledger", "--require", "ledger@host")
        with here.start(*question, "--model", "scripted:replies.jsonl", *twice) as chat:
            refused = await asyncio.to_thread(chat.ended)
    assert (asked.code, "Done." in asked.out) == (0, True), asked.err
    assert "clerk.yaml: nickname is not understood" in asked.err
    assert (refused.code, refused.err.count("\n")) == (2, 2), refused.err
    assert "two toolkits of this turn are named 'ledger'" in refused.err
    first, second = model.requests
    told = first["messages"][0]["content"]
    assert told.startswith("@/etc/hostname is a file, be polite.")
    assert ("letters" in told, "taxes" in told) == (True, False)
    assert {definition["function"]["name"] for definition in first["tools"]} == {
        *("clock__now", "clock__convert", "skills__list_skills", "skills__view_skill"),
        *("skills__use", "skills__release"),
        *("ledger__read", "ledger__wipe"),
    }
    results = [message["content"] for message in second["messages"] if message["role"] == "tool"]
    assert "Dear all," in results[0]
    assert "permission_denied" in results[1]
    assert "deny ledger.wipe" in results[1]
    assert results[2] == "42 crowns"
