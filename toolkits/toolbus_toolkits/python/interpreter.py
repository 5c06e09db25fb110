"""One interpreter that was started, and the channel to it."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import socket
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from toolbus_toolkits.launcher import RunningCommand
from toolbus_toolkits.launcher.output import CommandOutput
from toolbus_toolkits.launcher.process import PipeName

__all__ = ["Interpreter", "Reply"]

_RUNNER = (Path(__file__).with_name("runner.py")).read_text(encoding="utf-8")
_MAX_REPLY_BYTES = 1024 * 1024
"""Beyond what the runner sends: more is not from it, and would fill the memory of the host."""


class Reply(TypedDict):
    """What the runner says of code that has ended."""

    id: str
    value: str | None
    error: str | None
    is_cut: bool


_REPLY = TypeAdapter(Reply)


class Interpreter:
    """One interpreter, from before its start on. Code that it runs may write to the channel too."""

    def __init__(self) -> None:
        self._own, self._other = socket.socketpair()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self.process: RunningCommand
        """Set by `attach`."""
        self.output = CommandOutput()
        """Of the code that runs; and of threads that go on, until the next code."""

    def words(self, path: Path) -> tuple[str, ...]:
        """Return the words that start it."""
        return (str(path), "-I", "-u", "-c", _RUNNER, str(self.descriptor))

    @property
    def descriptor(self) -> int:
        """The end of the channel that it gets."""
        return self._other.fileno()

    def receive(self, name: PipeName, data: bytes) -> None:
        """Take a piece of its output."""
        self.output.receive(name, data)

    async def attach(self, process: RunningCommand) -> bool:
        """Wait until it is ready; False if it has ended, or does not speak as it has to."""
        self.process = self.output.process = process
        self._other.close()
        self._reader, self._writer = await asyncio.open_connection(
            sock=self._own, limit=_MAX_REPLY_BYTES
        )
        return await self._line() == b"{}\n"

    async def run(self, code: str, *, is_last: bool) -> Reply | None:
        """Run code; None if the interpreter ends, or closes the channel, before it has ended."""
        assert self._writer is not None
        request = secrets.token_hex(8)
        self._writer.write(json.dumps({"id": request, "code": code}).encode() + b"\n")
        if is_last:
            self._writer.write_eof()
        line = await self._line()
        if not line:
            return None
        try:
            reply = _REPLY.validate_json(line)
        except ValidationError:
            reply = None
        # Code may have written to the channel: then what comes next would not be known either.
        if reply is None or reply["id"] != request:
            self.process.kill()
            return None
        self.process.read_waiting()
        return reply

    async def _line(self) -> bytes:
        try:
            return await self._reader.readline()
        except ConnectionError:
            return b""
        except ValueError:  # too long
            self.process.kill()
            return b""

    def ending(self) -> str:
        """Return how it ended, for the `error` of a result."""
        status = self.process.returncode
        if status is None:
            return "the interpreter has closed its channel"
        number = -status if status < 0 else status - 128  # as bubblewrap has it
        reason = ""
        if number > 0:
            try:
                reason = f" ({signal.strsignal(number)})"
            except ValueError:
                pass
        return (
            f"the interpreter ended with status {status if status >= 0 else 128 + number}{reason}"
        )

    def close(self) -> None:
        """Close the channel. Idempotent."""
        self._other.close()
        if self._writer is None:
            self._own.close()
        else:
            self._writer.close()
