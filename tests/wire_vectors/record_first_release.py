"""Records what a client of the first release says and hears, beside this file; run it with python.

Version 1 of the protocol is that of one commit. Its SDK, taken out of the repository's history,
talks to a server of its own over a relay that writes down every frame: what stands in
`first_release/` is what clients out there send and understand. A conversation is a list, in the
order in which the relay saw things:

    {"joins": who, "name": the participant's, "path": of the URL}     who is "INSTANCE/1", then "/2"
    {"by": who, "frame": [kind, ...]}       the client says
    {"to": who, "frame": [kind, ...]}       the server says
    {"leaves": who, "code": 1000}           the client closes; null: it is gone without a word
    {"closed": who, "code": 4409}           the server closes

In frames `{"$packed": value}` is a byte string that holds a packed value, `{"$bin": "hex"}` any
other, `{"$token": name}` a token. Packed again by msgpack, a frame is what went over the wire, byte
by byte. Committed conversations never change; new ones are added.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgpack
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

HERE = Path(__file__).parent
COMMIT = "557f3e4"
REFRESH = 38


def described(data: bytes) -> Any:
    """Write a frame so that JSON can hold it, and look that nothing of it is lost."""
    frame = msgpack.unpackb(data)
    assert msgpack.packb(frame) == data
    if frame[0] == REFRESH:
        frame[2] = {"$token": _subject(frame[2])}
    return _plain(frame)


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return _plain_bytes(value)
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
    return value


def _plain_bytes(value: bytes) -> dict[str, Any]:
    try:
        held = msgpack.unpackb(value)
    except ValueError:
        return {"$bin": value.hex()}
    if msgpack.packb(held) != value or not isinstance(held, dict | list):
        return {"$bin": value.hex()}
    return {"$packed": _plain(held)}


class Tape:
    """A relay between clients and a server, and what it saw.

    Args:
        url: Where the server listens.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.seen: list[dict[str, Any]] = []
        self._near: dict[str, ServerConnection] = {}
        self._count: Counter[str] = Counter()

    def cut(self, who: str) -> None:
        """Let a client lose its connection, and the server not know."""
        self._near[who].transport.abort()

    async def handle(self, near: ServerConnection) -> None:
        """Relay one connection until both of its ends are gone."""
        assert near.request is not None
        token = near.request.headers["Authorization"].removeprefix("Bearer ")
        path = near.request.path
        instance = parse_qs(urlsplit(path).query)["instance"][0]
        self._count[instance] += 1
        who = f"{instance}/{self._count[instance]}"
        self._near[who] = near
        self.seen.append({"joins": who, "name": _subject(token), "path": path})
        async with connect(
            self._url + path,
            additional_headers={"Authorization": f"Bearer {token}"},
            subprotocols=[Subprotocol("toolbus.v1")],
            compression=None,
        ) as far:
            telling = asyncio.create_task(self._tell(who, far, near))
            await self._listen(who, near, far)
            await telling

    async def _listen(self, who: str, near: ServerConnection, far: ClientConnection) -> None:
        with suppress(ConnectionClosed):
            async for data in near:
                assert isinstance(data, bytes)
                self.seen.append({"by": who, "frame": described(data)})
                await far.send(data)
        said = near.protocol.close_rcvd
        if said is None:
            self.seen.append({"leaves": who, "code": None})
        elif near.protocol.close_rcvd_then_sent:
            self.seen.append({"leaves": who, "code": said.code})
            await far.close(said.code)

    async def _tell(self, who: str, far: ClientConnection, near: ServerConnection) -> None:
        async for data in _messages(far):
            self.seen.append({"to": who, "frame": described(data)})
            with suppress(ConnectionClosed):
                await near.send(data)
        said = far.protocol.close_rcvd
        if said is not None and far.protocol.close_rcvd_then_sent:
            self.seen.append({"closed": who, "code": said.code})
            await near.close(said.code)


async def _messages(far: ClientConnection) -> AsyncIterator[bytes]:
    with suppress(ConnectionClosed):
        async for data in far:
            assert isinstance(data, bytes)
            yield data


def _subject(token: str) -> str:
    body = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return str(claims["sub"])


async def record(play: Any) -> list[dict[str, Any]]:
    """Let one play run between people and a server, and give what was seen."""
    from toolbus_server.testing import running_server

    async with running_server(seed=1) as server:
        tape = Tape(server.url)
        async with serve(
            tape.handle, "127.0.0.1", 0, subprotocols=[Subprotocol("toolbus.v1")], compression=None
        ) as relay:
            port = next(iter(relay.sockets)).getsockname()[1]
            await play(server, tape, f"ws://127.0.0.1:{port}")
        return tape.seen


def write(name: str, what: str, seen: list[dict[str, Any]]) -> None:
    """Write a conversation, one thing a line."""
    lines = ",\n".join(f"  {json.dumps(each, ensure_ascii=False)}" for each in seen)
    text = f'{{\n"what": {json.dumps(what)},\n"talk": [\n{lines}\n]\n}}\n'
    place = HERE / "first_release"
    place.mkdir(exist_ok=True)
    (place / f"{name}.json").write_text(text, encoding="utf-8")


async def record_all() -> None:
    """Record every play; the packages of that commit are the ones imported now."""
    from toolbus.wire import PROTOCOL_VERSION
    from wire_vectors.first_release_plays import PLAYS

    assert PROTOCOL_VERSION == 1
    for play in PLAYS:
        async with asyncio.timeout(60):
            write(play.__name__, (play.__doc__ or "").strip(), await record(play))


def main() -> None:
    """Take that commit's packages out of the history, and record with them."""
    root = subprocess.run(
        ["git", "rev-parse", "--show-toplevel"], cwd=HERE, capture_output=True, check=True
    )
    folder = root.stdout.decode().strip()
    archive = subprocess.run(
        ["git", "archive", COMMIT, "sdk", "room_server"], cwd=folder, stdout=-1, check=True
    )
    with tempfile.TemporaryDirectory() as old:
        tarfile.open(fileobj=io.BytesIO(archive.stdout)).extractall(old, filter="data")
        path = os.pathsep.join([f"{old}/sdk", f"{old}/room_server", str(HERE.parent)])
        command = [sys.executable, __file__, "--inside"]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--inside"]:
        asyncio.run(record_all())
    else:
        main()
