"""One worker of many: a server in a process of its own, which its parent starts and tells to leave.

It accepts from a socket that its parent opened, trusts the keys that the parent read, and leaves as
a server does when it is told to, when it gets SIGTERM, or when its parent has ended. What others
may see too, as that Redis is away, it has its parent say, once for all.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from toolbus import event_loop
from toolbus.exit_codes import exit_code
from toolbus.keys import KeyRing
from toolbus.recorded import recorded
from toolbus_server.nodes.node_name import NameTaken
from toolbus_server.one_voice import Said
from toolbus_server.server import RoomServer
from toolbus_server.settings import ServerSettings
from toolbus_server.told_to_stop import unless_told
from toolbus_server.worker_line import LONGEST_LINE_BYTES, packed

if TYPE_CHECKING:
    from toolbus_server.metrics import Numbers

__all__ = ["Post", "work"]

_ANSWER_S = 1.0
"""How long `/metrics` waits for the others."""
_SEEN_BY_SEVERAL = "toolbus_server.nodes"
"""The loggers of what is said of Redis and of other nodes."""


@dataclass(frozen=True, slots=True)
class Post:
    """What one worker is given."""

    settings: ServerSettings
    """Of all workers; `node` is what they are called together."""
    number: int
    """Which one it is, from 1."""
    listener: socket.socket
    """Where it accepts connections; it listens already."""
    line: socket.socket
    """Its end of the line to the parent."""

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.settings.node}-{self.number}"


def work(post: Post) -> int:
    """Serve until it is told to leave, and return the exit code. It has the process for itself."""
    form = f"%(asctime)s %(levelname)s %(name)s [{post.name}]: %(message)s"
    for handler in logging.getLogger().handlers:
        handler.setFormatter(logging.Formatter(form))
    with recorded("toolbus-server"):
        try:
            event_loop.run(_serve(post))
        except NameTaken as error:  # its parent knows, and says so
            return exit_code(error)
    return 0


async def _serve(post: Post) -> None:
    stop = asyncio.Event()
    reader, writer = await asyncio.open_unix_connection(sock=post.line, limit=LONGEST_LINE_BYTES)
    server = RoomServer(replace(post.settings, node=post.name))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, _leave, stop, writer, server)
    _have_said(post, writer)
    colleagues = _Colleagues(post.name, writer, server.numbers)
    server.ask_workers = colleagues.numbers
    keys = _Keys(server)
    obeying = asyncio.create_task(_obey(reader, keys.trust, colleagues, stop))
    try:
        if await unless_told(stop, server.start(post.listener)):
            keys.begin()
            writer.write(packed({"ready": True}))
            await stop.wait()
            await server.stop()
    except NameTaken as error:
        writer.write(packed({"refused": error.message}))
        raise
    finally:
        obeying.cancel()
        await asyncio.wait([obeying])
        writer.close()
        with suppress(OSError):  # of a parent that has ended
            await writer.wait_closed()


def _leave(stop: asyncio.Event, writer: asyncio.StreamWriter, server: RoomServer) -> None:
    """Heed SIGTERM: stop, and have all new connections dealt out to the others."""
    # Who asks twice does not want to wait: the second signal ends the process at once.
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    server.stop_listening()
    writer.write(packed({"leaving": True}))
    stop.set()


async def _obey(
    reader: asyncio.StreamReader,
    trust: Callable[[KeyRing], None],
    colleagues: _Colleagues,
    stop: asyncio.Event,
) -> None:
    """Do what the parent says; without a parent, stop."""
    try:
        while line := await reader.readline():
            message = json.loads(line)
            if "keys" in message:
                trust(KeyRing.from_toml(message["keys"]))
            elif "drain" in message:
                stop.set()
            else:
                colleagues.hear(message)
    finally:
        stop.set()


class _Keys:
    """What the parent says of keys, which the server takes up once it is started."""

    def __init__(self, server: RoomServer) -> None:
        self._server = server
        self._is_begun = False
        self._told: KeyRing | None = None

    def trust(self, keys: KeyRing) -> None:
        """Accept the tokens of these keys, now or from the beginning."""
        self._told = keys
        if self._is_begun:
            self._server.trust(keys)

    def begin(self) -> None:
        """Take note that the server is started."""
        self._is_begun = True
        if self._told is not None:
            self._server.trust(self._told)


class _Colleagues:
    """The other workers, as far as their numbers go.

    Args:
        me: What this one is called.
        writer: Leads to the parent, which passes on what they say.
        own: Gives the numbers of this one.
    """

    def __init__(self, me: str, writer: asyncio.StreamWriter, own: Callable[[], Numbers]) -> None:
        self._me = me
        self._writer = writer
        self._own = own
        self._asks: dict[int, _Ask] = {}
        self._last = 0

    async def numbers(self) -> Mapping[str, Numbers]:
        """Ask all for their numbers; who says nothing for a second is left out."""
        self._last += 1
        self._asks[self._last] = ask = _Ask()
        number = self._last
        self._writer.write(packed({"ask": number}))
        try:
            async with asyncio.timeout(_ANSWER_S):
                await ask.is_whole.wait()
        except TimeoutError:
            pass
        finally:
            del self._asks[number]
        return dict(sorted({self._me: self._own(), **ask.answers}.items()))

    def hear(self, message: Mapping[str, Any]) -> None:
        """Take what the parent passes on."""
        if "asked" in message:
            self._writer.write(packed({"tell": [*message["asked"], self._own()]}))
            return
        number, *rest = message.get("expect") or message["told"]
        ask = self._asks.get(number)
        if ask is None:
            return
        if "expect" in message:
            (ask.expected,) = rest
        else:
            worker, numbers = rest
            ask.answers[worker] = numbers
        if len(ask.answers) == ask.expected:
            ask.is_whole.set()


@dataclass(slots=True)
class _Ask:
    """One question to all others, and what they have said so far."""

    answers: dict[str, Numbers] = field(default_factory=dict)
    expected: int = -1
    is_whole: asyncio.Event = field(default_factory=asyncio.Event)


def _have_said(post: Post, writer: asyncio.StreamWriter) -> None:
    """Have the parent log what other workers may see too."""
    shared = logging.getLogger(_SEEN_BY_SEVERAL)
    shared.addHandler(_ParentsLog(post, writer))
    shared.propagate = False


class _ParentsLog(logging.Handler):
    """Hands records to the parent, who says once what several workers say."""

    def __init__(self, post: Post, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._me = re.compile(rf"{re.escape(post.name)}(?!\d)")
        self._all = post.settings.node
        self._writer = writer
        self._loop: Any = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        """Send one, in its own words and in those that speak of all workers as one."""
        text = self.format(record)
        said = Said(record.name, record.levelno, text, self._me.sub(self._all, text))
        with suppress(RuntimeError):  # when the loop is closed nothing is left to say
            self._loop.call_soon_threadsafe(self._writer.write, packed({"said": said}))
