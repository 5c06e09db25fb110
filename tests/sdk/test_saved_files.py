"""Files and tokens that toolbus wrote before its names changed are read as they were meant.

`tests/saved_files` has what one program of then wrote: two conversations in which a person allowed
`files.remove` with the same arguments from now on, and the records of its calls.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from toolbus import (
    Agent,
    ApiScope,
    ApprovalDecision,
    ApprovalRequest,
    KeyRing,
    ParticipantToken,
    Permissions,
    Records,
    SqliteStateStore,
    Toolkit,
    open_model,
    tool,
)

SAVED = Path(__file__).parents[1] / "saved_files"
KEY = """
[[key]]
kid = "before"
alg = "HS256"
iss = "toolbus-test"
alias = "garden"
secret = "blHxpbAXaLx7XxCDjDuKhYRgt4ACqB92bh0aPniNwB0Yq9wyfTouEskRMK_IgUmz"
"""
TOKEN = (
    "eyJhbGciOiJIUzI1NiIsImtpZCI6ImJlZm9yZSIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJyb29tIjpbImx"
    "hYiJdLCJyb2xlIjoiYWdlbnQiLCJhdWQiOiJ0b29sYnVzIiwiaXNzIjoidG9vbGJ1cy10ZXN0IiwiaWF0IjoxNzk"
    "1MDAwMDAwLCJleHAiOjE3OTUwMDM2MDAsImp0aSI6ImEwZGM2YzczMzFiZjRiOGIxOWYzYzBhNzI2MmFlNjEzIiw"
    "iYXBpIjp7ImFnZW50cyI6eyJyZWdpc3Rlcl9wdWJsaWNfdG9vbGtpdCI6dHJ1ZSwicmVnaXN0ZXJfcHJpdmF0ZV9"
    "0b29sa2l0Ijp0cnVlLCJ1c2VfdG9vbHMiOnRydWUsImNhbGwiOnRydWUsImFjdF9mb3IiOlsiKiJdLCJidWlsZGV"
    "ycyI6WyIqIl19LCJwcmVzZW5jZSI6dHJ1ZSwibWVzc2FnaW5nIjp0cnVlLCJ0cmFjZSI6dHJ1ZSwib2JzZXJ2ZSI"
    "6dHJ1ZSwiYWRtaW4iOnRydWUsImFwcHJvdmUiOlsiKiJdLCJhbnN3ZXIiOlsiKiJdfX0.uBNvl2Mcnq3XTglGHpH"
    "KAGRj-MwZ7IDg4vbJWfHMuhc"
)
"""Signed with that key, which nothing else trusts."""
REPLIES = 2 * (
    '{"uses": [{"name": "files.remove", "arguments": {"path": "a.txt"}}]}\n{"text": "Again."}\n'
)


def restored(name: str, folder: Path) -> Path:
    """Return an SQLite file with what the dump of one says."""
    path = folder / f"{name}.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript((SAVED / f"{name}.sql").read_text(encoding="utf-8"))
    return path


@tool(destructive=True)
async def remove(path: str) -> str:
    return f"removed {path}"


async def test_conversation_goes_on_and_what_a_person_allowed_always_still_holds(
    tmp_path: Path,
) -> None:
    (tmp_path / "replies.jsonl").write_text(REPLIES, encoding="utf-8")
    asked = list[str]()

    async def person(request: ApprovalRequest) -> ApprovalDecision:
        asked.append(request.tool.name)
        return ApprovalDecision.deny()

    agent = Agent(
        None,
        open_model(f"scripted:{tmp_path / 'replies.jsonl'}"),
        always=[Toolkit("files", [remove])],
        permissions=Permissions(),
        approve=person,
        store=SqliteStateStore(restored("states", tmp_path)),
    )
    result = await agent.run("Once more.", conversation="garden")
    assert result.text == "Again."
    assert [(use.tool, use.state) for use in result.results] == [("files.remove", "ok")]
    assert asked == []
    texts = [message.get("text") for message in result.conversation if "text" in message]
    assert texts == ["Remove a.txt.", "", "Removed.", "Once more.", "", "Again."]
    new = await agent.run("Once more.", conversation="new")
    assert [use.state for use in new.results] == ["denied"]
    assert asked == ["files.remove"]


def test_records_are_read(tmp_path: Path) -> None:
    with Records.sqlite(restored("records", tmp_path), days=99_999) as records:
        calls = records.calls(tool="files.remove")
    assert [(call.call_id, call.executed, call.decided_by) for call in calls] == [
        ("use-1-1", "yes", "person")
    ] * 2


def test_token_is_verified_by_its_key() -> None:
    verified = ParticipantToken.from_jwt(TOKEN, KeyRing.from_toml(KEY), now=1_795_000_001)
    assert (verified.name, verified.api) == ("ann", ApiScope.full())
