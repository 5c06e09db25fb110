"""A real browser: headless Chromium, controlled over its DevTools protocol.

Tests use a page as a person does: they type, click, and read what it shows. Each page has its own
profile, so that pages share no state.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from support.patience import PATIENCE_S

__all__ = ["Page", "chromium_command", "new_page", "running_chromium"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",  # root cannot have a sandbox; the pages are part of the tests
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-port=0",
)
_LISTENING = re.compile(r"DevTools listening on (ws://\S+)")
# Waits in the page itself for a text, without polling.
_SHOWS = """
new Promise((resolve) => {
  const place = document.getElementById(%s), wanted = new RegExp(%s);
  const look = () => wanted.test(place.textContent) && resolve(place.textContent);
  new MutationObserver(look).observe(place, {childList: true, characterData: true, subtree: true});
  look();
})
"""
_LOADED = """
new Promise((resolve) => document.readyState === "complete"
  ? resolve() : addEventListener("load", () => resolve()))
"""


def chromium_command() -> str | None:
    """Find a browser on this machine."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def running_chromium(command: str, profile: Path) -> Iterator[str]:
    """Run a browser until the block ends, and yield the address of its DevTools.

    Args:
        command: What `chromium_command` found.
        profile: The folder of its profile; new and empty.
    """
    with subprocess.Popen(
        [command, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stderr is not None
        # Its further output is read too, so that its pipe never fills.
        rest = threading.Thread(target=deque, args=(process.stderr, 0))
        try:
            address = _address_in(process.stderr)
            rest.start()
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
            if rest.ident is not None:
                rest.join()


def _address_in(lines: Iterable[str]) -> str:
    output: list[str] = []
    for line in lines:
        if found := _LISTENING.search(line):
            return found[1]
        output.append(line)
    raise AssertionError(f"the browser ended: {''.join(output)}")


class _DevTools:
    """The DevTools connection of a browser: requests with replies, and events."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.events: list[dict[str, Any]] = []

    async def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send one request and return its answer."""
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        place = {} if session is None else {"sessionId": session}
        await self._socket.send(
            json.dumps({"id": number, "method": method, "params": params, **place})
        )
        async with asyncio.timeout(PATIENCE_S):
            received = await answer
        assert "error" not in received, f"{method}: {received}"
        result: dict[str, Any] = received["result"]
        return result

    async def read(self) -> None:
        """Dispatch replies and events until the connection ends."""
        async for message in self._socket:
            received = json.loads(message)
            if "id" in received:
                self._answers.pop(received["id"]).set_result(received)
            else:
                self.events.append(received)


class Page:
    """One page of the browser.

    Args:
        tools: The DevTools connection.
        session: The DevTools session of this page.
    """

    def __init__(self, tools: _DevTools, session: str) -> None:
        self._tools = tools
        self._session = session

    async def open(self, url: str) -> None:
        """Go to an address, and wait until its scripts have run."""
        received = await self._ask("Page.navigate", url=url)
        assert "errorText" not in received, received
        await self.evaluate(_LOADED)

    async def type(self, form: str, **fields: str) -> None:
        """Set the fields of a form."""
        for name, text in fields.items():
            place = f"document.forms[{json.dumps(form)}].elements[{json.dumps(name)}]"
            await self.evaluate(f"{place}.focus(), {place}.select()")
            await self._ask("Input.insertText", text=text)

    async def press(self, selector: str) -> None:
        """Click on an element."""
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    async def shows(self, element: str, pattern: str) -> str:
        """Wait until the element with this id has a text that matches, and return the text."""
        wanted = _SHOWS % (json.dumps(element), json.dumps(pattern))
        try:
            return str(await self.evaluate(wanted))
        except TimeoutError:
            found = await self.evaluate("document.body.innerText")
            raise AssertionError(f"{element} does not show {pattern!r}:\n{found}") from None

    async def evaluate(self, expression: str) -> Any:
        """Evaluate JavaScript and return its value; a promise is awaited."""
        received = await self._ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in received, received["exceptionDetails"]
        return received["result"].get("value")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of this page so far that have this name."""
        return [each["params"] for each in self.all_events() if each["method"] == name]

    def all_events(self) -> list[dict[str, Any]]:
        """Return all events of this page so far: network, console, log."""
        return [each for each in self._tools.events if each.get("sessionId") == self._session]

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._tools.ask(method, self._session, **params)


def _silent_log() -> logging.Logger:
    """Keep what is typed into pages out of the logs that tests check."""
    log = logging.getLogger("support.clients.chromium")
    log.setLevel(logging.CRITICAL)
    return log


@asynccontextmanager
async def new_page(devtools_url: str) -> AsyncIterator[Page]:
    """Open a page with its own profile; it is closed when the block ends."""
    async with connect(
        devtools_url, max_size=None, compression=None, logger=_silent_log(), proxy=None
    ) as socket:
        tools = _DevTools(socket)
        reading = asyncio.create_task(tools.read())
        try:
            profile = (await tools.ask("Target.createBrowserContext"))["browserContextId"]
            target = await tools.ask(
                "Target.createTarget", url="about:blank", browserContextId=profile
            )
            attached = await tools.ask(
                "Target.attachToTarget", targetId=target["targetId"], flatten=True
            )
            session = attached["sessionId"]
            for domain in ("Page", "Network", "Runtime", "Log"):
                await tools.ask(f"{domain}.enable", session)
            yield Page(tools, session)
            await tools.ask("Target.disposeBrowserContext", browserContextId=profile)
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
