"""Records what a client of the first release sends and receives; run it with python.

Version 1 of the protocol is that of one commit. Its SDK, taken from the history of the repository,
talks to a server of that commit over a relay that records every frame. The files in
`first_release/` are therefore what released clients send and understand. A conversation is a list,
in the order in which the relay saw the events:

    {"joins": who, "name": the participant's, "path": of the URL}     who is "INSTANCE/1", then "/2"
    {"by": who, "frame": [kind, ...]}       the client sends
    {"to": who, "frame": [kind, ...]}       the server sends
    {"leaves": who, "code": 1000}           the client closes; null: it is gone without a close
    {"closed": who, "code": 4409}           the server closes

In frames `{"$packed": value}` is a byte string that holds a packed value, `{"$bin": "hex"}` any
other, `{"$token": name}` a token. Packed again by msgpack, a frame has the same bytes as on the
wire. Committed conversations never change; new ones are added.
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
    """Convert a frame to a form that JSON can hold, and check that nothing of it is lost."""
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
        unpacked = msgpack.unpackb(value)
    except ValueError:
        return {"$bin": value.hex()}
    if msgpack.packb(unpacked) != value or not isinstance(unpacked, dict | list):
        return {"$bin": value.hex()}
    return {"$packed": _plain(unpacked)}


class RecordingRelay:
    """A relay between clients and a server, and the recorded events.

    Args:
        url: The URL of the server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.events: list[dict[str, Any]] = []
        self._clients: dict[str, ServerConnection] = {}
        self._count: Counter[str] = Counter()

    def cut(self, who: str) -> None:
        """Let a client lose its connection without the server noticing."""
        self._clients[who].transport.abort()

    async def handle(self, client: ServerConnection) -> None:
        """Relay one connection until both of its ends are closed."""
        assert client.request is not None
        token = client.request.headers["Authorization"].removeprefix("Bearer ")
        path = client.request.path
        instance = parse_qs(urlsplit(path).query)["instance"][0]
        self._count[instance] += 1
        who = f"{instance}/{self._count[instance]}"
        self._clients[who] = client
        self.events.append({"joins": who, "name": _subject(token), "path": path})
        async with connect(
            self._url + path,
            additional_headers={"Authorization": f"Bearer {token}"},
            subprotocols=[Subprotocol("toolbus.v1")],
            compression=None,
        ) as server:
            from_server = asyncio.create_task(self._relay_server(who, server, client))
            await self._relay_client(who, client, server)
            await from_server

    async def _relay_client(
        self, who: str, client: ServerConnection, server: ClientConnection
    ) -> None:
        with suppress(ConnectionClosed):
            async for data in client:
                assert isinstance(data, bytes)
                self.events.append({"by": who, "frame": described(data)})
                await server.send(data)
        close = client.protocol.close_rcvd
        if close is None:
            self.events.append({"leaves": who, "code": None})
        elif client.protocol.close_rcvd_then_sent:
            self.events.append({"leaves": who, "code": close.code})
            await server.close(close.code)

    async def _relay_server(
        self, who: str, server: ClientConnection, client: ServerConnection
    ) -> None:
        async for data in _messages(server):
            self.events.append({"to": who, "frame": described(data)})
            with suppress(ConnectionClosed):
                await client.send(data)
        close = server.protocol.close_rcvd
        if close is not None and server.protocol.close_rcvd_then_sent:
            self.events.append({"closed": who, "code": close.code})
            await client.close(close.code)


async def _messages(server: ClientConnection) -> AsyncIterator[bytes]:
    with suppress(ConnectionClosed):
        async for data in server:
            assert isinstance(data, bytes)
            yield data


def _subject(token: str) -> str:
    body = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return str(claims["sub"])


async def record(conversation: Any) -> list[dict[str, Any]]:
    """Run one conversation between participants and a server, and return the events."""
    from toolbus_server.testing import running_server

    async with running_server(seed=1) as server:
        recording = RecordingRelay(server.url)
        async with serve(
            recording.handle,
            "127.0.0.1",
            0,
            subprotocols=[Subprotocol("toolbus.v1")],
            compression=None,
        ) as relay:
            port = next(iter(relay.sockets)).getsockname()[1]
            await conversation(server, recording, f"ws://127.0.0.1:{port}")
        return recording.events


def write(name: str, what: str, events: list[dict[str, Any]]) -> None:
    """Write a conversation, one event a line."""
    lines = ",\n".join(f"  {json.dumps(each, ensure_ascii=False)}" for each in events)
    text = f'{{\n"what": {json.dumps(what)},\n"talk": [\n{lines}\n]\n}}\n'
    folder = HERE / "first_release"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(text, encoding="utf-8")


async def record_all() -> None:
    """Record every conversation; the imported packages are those of that commit."""
    from toolbus.wire import PROTOCOL_VERSION
    from wire_vectors.first_release_conversations import CONVERSATIONS

    assert PROTOCOL_VERSION == 1
    for conversation in CONVERSATIONS:
        async with asyncio.timeout(60):
            write(
                conversation.__name__,
                (conversation.__doc__ or "").strip(),
                await record(conversation),
            )


def main() -> None:
    """Extract that commit's packages from the history, and record with them."""
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
