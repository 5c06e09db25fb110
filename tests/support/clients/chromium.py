"""A real browser: headless Chromium, told what to do over its DevTools protocol.

A page here is used as a person uses it: typed into, clicked, and read by what it shows. Each has a
profile of its own, so that nothing of another is in it.
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

__all__ = ["Page", "chromium_command", "new_page", "running_chromium"]

PATIENCE_S = 60.0
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",  # which root cannot have; the pages are our own
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
# Waits in the page itself for a text, without asking again and again.
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
    """Run a browser for as long as the block runs, and give the address of its DevTools.

    Args:
        command: What `chromium_command` found.
        profile: A folder for what it keeps; new and empty.
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
        # What else it says is read too, so that it never waits for a reader.
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
    said: list[str] = []
    for line in lines:
        if found := _LISTENING.search(line):
            return found[1]
        said.append(line)
    raise AssertionError(f"the browser ended: {''.join(said)}")


class _DevTools:
    """The browser's side channel: requests with their answers, and what it tells unasked."""

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
            told = await answer
        assert "error" not in told, f"{method}: {told}"
        result: dict[str, Any] = told["result"]
        return result

    async def read(self) -> None:
        """Hand out what comes, until the end."""
        async for message in self._socket:
            told = json.loads(message)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            else:
                self.events.append(told)


class Page:
    """One page of the browser.

    Args:
        tools: The way to the browser.
        session: Of this page.
    """

    def __init__(self, tools: _DevTools, session: str) -> None:
        self._tools = tools
        self._session = session

    async def open(self, url: str) -> None:
        """Go to an address, and wait until its scripts have run."""
        told = await self._ask("Page.navigate", url=url)
        assert "errorText" not in told, told
        await self.evaluate(_LOADED)

    async def type(self, form: str, **fields: str) -> None:
        """Write into the fields of a form, in the place of what is there."""
        for name, text in fields.items():
            place = f"document.forms[{json.dumps(form)}].elements[{json.dumps(name)}]"
            await self.evaluate(f"{place}.focus(), {place}.select()")
            await self._ask("Input.insertText", text=text)

    async def press(self, selector: str) -> None:
        """Click on something."""
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    async def shows(self, element: str, pattern: str) -> str:
        """Wait until the element with this id has a text with this pattern, and return the text."""
        wanted = _SHOWS % (json.dumps(element), json.dumps(pattern))
        try:
            return str(await self.evaluate(wanted))
        except TimeoutError:
            found = await self.evaluate("document.body.innerText")
            raise AssertionError(f"{element} does not show {pattern!r}:\n{found}") from None

    async def evaluate(self, expression: str) -> Any:
        """Run JavaScript and return its value, of a promise what it resolves to."""
        told = await self._ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the browser has told of this page so far, of one name."""
        return [each["params"] for each in self.all_events() if each["method"] == name]

    def all_events(self) -> list[dict[str, Any]]:
        """All that the browser has told of this page so far: network, console, log."""
        return [each for each in self._tools.events if each.get("sessionId") == self._session]

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._tools.ask(method, self._session, **params)


def _silent_log() -> logging.Logger:
    """Keep what is typed into pages out of the logs that tests look at."""
    log = logging.getLogger("support.clients.chromium")
    log.setLevel(logging.CRITICAL)
    return log


@asynccontextmanager
async def new_page(devtools_url: str) -> AsyncIterator[Page]:
    """Open a page with a profile of its own; it is closed at the end of the block."""
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
