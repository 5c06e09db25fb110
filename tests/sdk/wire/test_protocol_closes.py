"""How connections end and how requests are answered: the tables of PROTOCOL.md and the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from toolbus.wire.frames import (
    FROM_CLIENT,
    Assess,
    Call,
    Cancel,
    Credit,
    Failed,
    Input,
    Progress,
    Result,
    StreamChunk,
)
from toolbus_server.access import admission
from toolbus_server.access.admission import Refusal

_ROOT = Path(__file__).parents[3]
_TEXT = (_ROOT / "sdk/toolbus/wire/PROTOCOL.md").read_text(encoding="utf-8")
# All code that closes a connection to a server, or chooses the code.
_CLOSING = (
    "sdk/toolbus/transport/websocket.py",
    "sdk/toolbus/wire/codec.py",
    "room_server/toolbus_server/access/admission.py",
    "room_server/toolbus_server/websocket/server.py",
    "room_server/toolbus_server/websocket/session.py",
)
# 1001 is sent by proxies of a server that shuts down, 1011 by websockets itself.
_OF_OTHERS = {1001, 1011}
_OF_CALLS = {Assess, Call, Cancel, Credit, Failed, Input, Progress, Result, StreamChunk}


def _rows(heading: str) -> list[list[str]]:
    """Return the rows of the first table below a line that begins so."""
    table = re.search(r"(?:^ *\|.*\n)+", _TEXT.split(f"\n{heading}", 1)[1], re.MULTILINE)
    assert table is not None
    lines = table.group().splitlines()[2:]
    return [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines]


def _numbers(cell: str) -> set[int]:
    return {int(number) for number in re.findall(r"\d+", cell)}


def _written_close_codes() -> set[int]:
    return set().union(*(_numbers(row[0]) for row in _rows("Close codes that the server uses")))


def _close_codes_in(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            if 1000 < node.value < 1016 or 4400 <= node.value < 4500:
                yield node.value


def test_table_of_close_codes_matches_the_code() -> None:
    """CONN-14, FRAME-2."""
    used = {code for name in _CLOSING for code in _close_codes_in(_ROOT / name)}
    assert used | _OF_OTHERS == _written_close_codes()


def test_table_of_refusals_has_every_one_with_its_close_code() -> None:
    """CONN-5, CONN-6."""
    built = {
        (each.status, each.close_code)
        for each in vars(admission).values()
        if isinstance(each, Refusal)
    }
    written = {
        (status, next(iter(_numbers(row[2])), None))
        for row in _rows("- **CONN-5**")
        for status in _numbers(row[0])
    }
    # What websockets answers by itself, before anything is read.
    assert written - built == {(414, None), (431, None)}
    assert built <= written


def test_page_has_a_text_for_every_close_code_of_toolbus() -> None:
    """CONN-6."""
    page = (_ROOT / "tests/browser/room.js").read_text(encoding="utf-8")
    explained = {int(code) for code in re.findall(r"^  (\d{4}): ", page, re.MULTILINE)}
    assert explained > {code for code in _written_close_codes() if code >= 4000}


def test_body_of_every_reply_is_documented() -> None:
    """FRAME-11: each request has one reply; the one of a call is a chunk."""
    requests = {frame.__name__ for frame in set(FROM_CLIENT) - _OF_CALLS}
    names = {"list" if name == "ListToolkits" else name.lower() for name in requests}
    assert {row[0] for row in _rows("Bodies of the replies")} == names


def test_every_grant_is_explained_in_the_reference() -> None:
    page = (_ROOT / "docs/reference/grants.md").read_text(encoding="utf-8")
    rows = page.partition("| field | default |")[2]
    for line in rows.splitlines()[2:]:
        if not line.startswith("|"):
            break
        *_, effect = line.strip("|").split(" | ")
        assert len(effect.split()) > 2, line
