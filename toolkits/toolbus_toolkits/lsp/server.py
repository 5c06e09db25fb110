"""A language server that runs for one folder: its process, its messages, and what it asks for.

It asks for settings and reports progress; it may not edit files, open windows or ask a person.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from toolbus_toolkits.launcher import LaunchFailed, Program, RunningProgram, launch
from toolbus_toolkits.lsp.protocol import Message, ProtocolError, Reader, decoded, to_bytes

__all__ = ["LanguageServer", "ServerEnded", "ServerError", "running_server"]

_INITIALIZE_S = 30.0
"""A server reads its project later, so it answers in a second; one that hangs holds up its call."""
_MAX_UNASKED_BYTES = 64 * 1024 * 1024
"""What a server writes between two answers: reading without end takes a processor."""
_MAX_UNREAD_BYTES = 1024 * 1024
"""Of answers to questions of a server that it does not read."""
_MAX_ITEMS = 1_000
"""Of what a server asks for or tells at once."""
_METHOD_NOT_FOUND = -32601  # JSON-RPC 2.0

_CAPABILITIES = {
    # Each server has to know UTF-16, so nothing else is offered.
    "general": {"positionEncodings": ["utf-16"]},
    "workspace": {
        "configuration": True,
        "workspaceFolders": True,
        "symbol": {},
        # Without it servers watch the files themselves, and are late.
        "didChangeWatchedFiles": {"dynamicRegistration": True, "relativePatternSupport": True},
    },
    "textDocument": {
        "synchronization": {},
        "definition": {"linkSupport": True},
        "references": {},
        "hover": {"contentFormat": ["markdown", "plaintext"]},
        "documentSymbol": {"hierarchicalDocumentSymbolSupport": True},
        "publishDiagnostics": {"versionSupport": True},
        "diagnostic": {"dynamicRegistration": True},
    },
    "window": {"workDoneProgress": True},
}


class ServerEnded(Exception):
    """The server has ended, and answers nothing more."""


class ServerError(Exception):
    """The server answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class LanguageServer:
    """A language server that runs.

    Args:
        program: Its process.
        root: The folder that it knows; a real path.
        settings: What it gets when it asks for settings, by section.
        program_name: The name of its program.
    """

    def __init__(
        self,
        program: RunningProgram,
        root: str,
        settings: Mapping[str, Any],
        program_name: str = "",
    ) -> None:
        self._program = program
        name = os.fsencode(Path(root).name).decode(errors="replace")
        self._folder = {"uri": Path(root).as_uri(), "name": name}
        self._settings = settings
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._unasked_bytes = 0
        self.has_ended = False
        self.program = program_name
        """The name of its program."""
        self.pulls_diagnostics = False
        """Whether it answers the question for the diagnostics of a file; else it tells them."""
        self.diagnostics: dict[str, list[Any]] = {}
        """What it has told last, by URI."""
        self.published: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """By URI: set whenever it tells diagnostics, and when it will tell none."""

    async def initialize(self, options: Mapping[str, Any] | None) -> None:
        """Begin the session, with the server's own options.

        Raises `ServerEnded`, `ServerError` and `TimeoutError`.
        """
        async with asyncio.timeout(_INITIALIZE_S):
            answer = await self.ask(
                "initialize",
                {
                    "processId": None,  # it may be in a namespace where ours is another's
                    "clientInfo": {"name": "toolbus"},
                    "rootUri": self._folder["uri"],
                    "workspaceFolders": [self._folder],
                    "capabilities": _CAPABILITIES,
                    "initializationOptions": options,
                },
            )
        found = answer.get("capabilities") if isinstance(answer, dict) else None
        self.pulls_diagnostics = isinstance(found, dict) and "diagnosticProvider" in found
        self.notify("initialized", {})
        self.notify("workspace/didChangeConfiguration", {"settings": self._settings})

    async def ask(self, method: str, params: dict[str, Any] | None) -> Any:
        """Return the result of a request. If this is cancelled, so is the request.

        The request is written before the first wait, so that notifications keep their order.

        Raises `ServerEnded`, and `ServerError` for an error in its place.
        """
        if self.has_ended:
            raise ServerEnded
        number = next(self._numbers)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._write({"id": number, "method": method, "params": params})
            return await future
        except asyncio.CancelledError:
            self.notify("$/cancelRequest", {"id": number})
            raise
        finally:
            del self._asked[number]

    def notify(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification."""
        if not self.has_ended:
            self._write({"method": method, "params": params})

    async def drain(self) -> None:
        """Wait until it has read nearly all that it was sent."""
        with suppress(OSError, RuntimeError):  # it has ended, which `read` finds
            await self._program.stdin.drain()

    def forget(self, uri: str) -> None:
        """Forget the diagnostics of a file that is not open any more."""
        self.diagnostics.pop(uri, None)
        self.published.pop(uri, None)

    def ending(self) -> str:
        """Return how it ended, as words for an error."""
        return self._program.ending()

    def _write(self, message: dict[str, Any]) -> None:
        with suppress(OSError, RuntimeError):  # it has ended, which `read` finds
            self._program.stdin.write(to_bytes(message))

    async def read(self) -> None:
        """Read what it writes until its end."""
        reader = Reader()
        try:
            while data := await self._program.read():
                self._unasked_bytes += len(data)
                for message in reader.feed(data):
                    self._take(message)
                if self._unasked_bytes > _MAX_UNASKED_BYTES:
                    raise ProtocolError("it writes without end")
            await self._program.exited()
        except ProtocolError as error:
            self._program.given_up = str(error)
        finally:
            self.close()

    def close(self) -> None:
        """Let all that is asked raise `ServerEnded`. Idempotent."""
        self.has_ended = True
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ServerEnded())
        self._wake()

    def _wake(self) -> None:
        for event in self.published.values():
            event.set()

    def _take(self, message: Message) -> None:
        if not message.method:
            self._take_answer(message)
        elif message.id is not None:
            if self._program.stdin.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
                raise ProtocolError("it does not read the answers to what it asks")
            answer = self._answer(message.method, decoded(message.params))
            self._write({"id": message.id, **answer})
        elif message.method == "textDocument/publishDiagnostics":
            self._take_diagnostics(decoded(message.params))

    def _take_answer(self, message: Message) -> None:
        future = self._asked.get(message.id) if isinstance(message.id, int) else None
        if future is None or future.done():
            return
        self._unasked_bytes = 0
        try:
            error, result = decoded(message.error), decoded(message.result)
        except ProtocolError as fault:
            future.set_exception(ServerError(0, f"an answer that is not read: {fault}"))
            return
        if not isinstance(error, dict):
            future.set_result(result)
            return
        code = error.get("code")
        text = str(error.get("message", "an error without words"))
        future.set_exception(ServerError(code if isinstance(code, int) else 0, text))

    def _take_diagnostics(self, params: Any) -> None:
        if not isinstance(params, dict):
            return
        uri, found = params.get("uri"), params.get("diagnostics")
        # Only of files that somebody has asked about: it may tell those of a whole project.
        if isinstance(uri, str) and isinstance(found, list) and uri in self.published:
            self.diagnostics[uri] = found[:_MAX_ITEMS]
            self.published[uri].set()

    def _answer(self, method: str, params: Any) -> dict[str, Any]:
        """Return the result or the error for what a server asks."""
        answer = _ANSWERS.get(method)
        if answer is None:
            return {"error": {"code": _METHOD_NOT_FOUND, "message": f"{method} is not offered"}}
        return {"result": answer(self, params if isinstance(params, dict) else {})}

    def _configuration(self, params: dict[str, Any]) -> Any:
        items = params.get("items")
        sections = items[:_MAX_ITEMS] if isinstance(items, list) else []
        return [self._section(item) for item in sections]

    def _section(self, item: Any) -> Any:
        section = item.get("section") if isinstance(item, dict) else None
        found: Any = self._settings
        for name in section.split(".") if isinstance(section, str) and section else ():
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    def _register(self, params: dict[str, Any]) -> None:
        found = params.get("registrations")
        for registration in found if isinstance(found, list) else []:
            method = registration.get("method") if isinstance(registration, dict) else None
            if method == "textDocument/diagnostic":
                self.pulls_diagnostics = True
                self._wake()

    def _workspace_folders(self, _: dict[str, Any]) -> Any:
        return [self._folder]


_ANSWERS: dict[str, Callable[[LanguageServer, dict[str, Any]], Any]] = {
    "client/registerCapability": LanguageServer._register,
    "client/unregisterCapability": lambda _server, _params: None,
    "window/showDocument": lambda _server, _params: {"success": False},
    "window/showMessageRequest": lambda _server, _params: None,
    "window/workDoneProgress/create": lambda _server, _params: None,
    "workspace/applyEdit": lambda _server, _params: {
        "applied": False,
        "failureReason": "this client changes no files",
    },
    "workspace/configuration": LanguageServer._configuration,
    "workspace/diagnostic/refresh": lambda _server, _params: None,
    "workspace/workspaceFolders": LanguageServer._workspace_folders,
}


@asynccontextmanager
async def running_server(
    program: Program,
    root: str,
    settings: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> AsyncIterator[LanguageServer]:
    """Run a language server until the end of the block.

    Args:
        program: What is started.
        root: The folder that it knows; a real path.
        settings: What it gets when it asks for settings, by section.
        options: What it gets at its start, in a form of its own.

    Raises `LaunchFailed` if it cannot be started, or does not begin the session.
    """
    async with launch(program) as running:
        server = LanguageServer(running, root, settings, os.path.basename(program.command))
        reading = asyncio.create_task(server.read())
        try:
            try:
                await server.initialize(options)
            except ServerEnded:
                raise LaunchFailed(f"it has not begun: {server.ending()}") from None
            except ServerError as error:
                raise LaunchFailed(f"it refused to begin: {error}") from None
            except TimeoutError:
                text = f"it has not begun in {_INITIALIZE_S:.0f} s"
                raise LaunchFailed(text) from None
            yield server
        finally:
            server.notify("exit", None)
            server.close()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
