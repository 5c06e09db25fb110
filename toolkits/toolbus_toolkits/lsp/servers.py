"""The servers of one toolkit: one for each root and language, from the first question on."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

from toolbus import ToolContext, ToolFailed
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.callers import Asker, LastUsed, asker_of
from toolbus_toolkits.files.reached import ReachedFiles, failure
from toolbus_toolkits.launcher import LaunchFailed, Program
from toolbus_toolkits.launcher.command_config import command_environment
from toolbus_toolkits.lsp.config import LspConfig
from toolbus_toolkits.lsp.documents import THREADS, ChangesLost, Document, Documents
from toolbus_toolkits.lsp.languages import (
    DEFAULTS,
    INITIALIZATION_OPTIONS,
    LANGUAGES,
    default_server,
    found_program,
    program_folders,
    suffixes_of,
)
from toolbus_toolkits.lsp.server import LanguageServer, ServerEnded, ServerError, running_server
from toolbus_toolkits.sandbox import (
    Backend,
    SandboxConfig,
    SandboxUnavailable,
    backend_for,
    confinement,
)
from toolbus_toolkits.sandbox.plan import is_below_any
from toolbus_toolkits.sandbox.protection import find_protection
from toolbus_toolkits.workspace import SensitivePaths

__all__ = ["Question", "Servers"]

_MAX_RESTARTS = 3
"""In 10 minutes. What ends more often is broken, and each start reads a project as a whole."""
_WITHIN_S = 600.0
_RETRIED = (-32801, -32802)
"""`ContentModified` and `ServerCancelled`: the same question may be answered now."""
_MAX_RETRIES = 5
"""A server that always asks for another attempt would be asked until the deadline of the call."""
_PACKAGES = frozenset({"site-packages", "node_modules"})
_SETTINGS = frozenset(
    "jsconfig.json package.json pyproject.toml pyrightconfig.json tsconfig.json".split()
)
_MAX_JUDGED = 10_000
"""Calls that were judged and may still be attempted; far more than a host runs."""

Key: TypeAlias = tuple[str, str]
"""A root and a language."""
Question: TypeAlias = Callable[[LanguageServer, "Documents", "Document | None"], Awaitable[Any]]
"""Asks a server about a file that is open in it, if it is about one."""


class _Slot:
    """The place of one server, whether it runs or not."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.server: LanguageServer | None = None
        self.documents: Documents | None = None
        self.ends = deque[float]()
        """When servers have ended by themselves."""
        self.last_end = ""
        """How the last of them has."""
        self.stack = AsyncExitStack()

    @property
    def is_running(self) -> bool:
        """Whether its server runs."""
        return self.server is not None and not self.server.has_ended

    def note_end(self, how: str) -> None:
        """Note that its server has ended by itself."""
        self.ends.append(time.monotonic())
        self.last_end = how

    async def end(self) -> None:
        """End its server."""
        self.server = self.documents = None
        stack, self.stack = self.stack, AsyncExitStack()
        await stack.aclose()


class Servers:
    """The servers of one toolkit.

    Args:
        files: The files of the toolkit.
        config: The config of the toolkit.
    """

    def __init__(self, files: ReachedFiles, config: LspConfig) -> None:
        self._files = files
        self._config = config
        self._variables = command_environment(config.env, config.inherit)
        self._named = config.commands()
        self._slots: dict[Key, _Slot] = {}
        self._lock = threading.Lock()  # calls are assessed on other threads than they are run on
        # By who asks, and the id of a call, the servers that it may start.
        self._judged = LastUsed[tuple[Asker, str], frozenset[Key]](_MAX_JUDGED)
        self._ended = 0
        """How often all servers were ended."""
        self._names = SensitivePaths()

    def language_of(self, path: str) -> str:
        """Return the language of a file. Raises `ToolFailed` if there is no server for it."""
        suffix = os.path.splitext(path)[1].lower()
        for language in (*self._named, *LANGUAGES):
            if suffix in suffixes_of(language):
                self._words(language)
                return language
        end = f"files that end with {suffix}" if suffix else "files without an end such as .py"
        raise failure("no_server", f"there is no language server for {one_line(end, SHOWN_CHARS)}")

    def check_programs(self) -> None:
        """Raise `LaunchFailed` if a server that was named is not installed."""
        for language in self._named:
            try:
                self._words(language)
            except ToolFailed as error:
                raise LaunchFailed(str(error)) from None

    def languages(self) -> list[str]:
        """Return the languages that there are servers for."""
        usual = [name for name in DEFAULTS if default_server(name, self._path) is not None]
        return list(dict.fromkeys((*self._named, *usual)))

    # Whether a call may start a server

    def reads_only(self) -> bool:
        """Whether no server can change anything, reach the network or read secrets; it blocks.

        Servers run what a project brings, such as its interpreter and its compiler. So without a
        sandbox a start is not only reading. Landlock does not keep a program from changing the
        modes and times of files.
        """
        allowed = self._config.confinement
        if allowed is None or allowed.backend not in ("auto", "bubblewrap"):
            return False
        is_wider = (
            allowed.network
            or allowed.unix_sockets
            or allowed.read
            or allowed.write
            or allowed.hide is not None
            or allowed.protect is False
        )
        try:
            return not is_wider and backend_for(allowed) == "bubblewrap"
        except SandboxUnavailable:
            return False

    def runs(self, key: Key) -> bool:
        """Whether a server runs."""
        slot = self._slots.get(key)
        return slot is not None and slot.is_running

    def judge(self, context: ToolContext, may_start: Iterable[Key] | None) -> None:
        """Note which servers a call may start; None for any."""
        with self._lock:
            self._judged.pop((asker_of(context), context.call_id), None)
            # By a question of another participant it is not known which call will follow.
            if context.call_id and may_start is not None:
                self._judged[asker_of(context), context.call_id] = frozenset(may_start)

    async def probe(self) -> Backend | None:
        """Return what confines servers. Raises `SandboxUnavailable` if nothing can."""
        allowed = self._config.confinement
        return None if allowed is None else await THREADS.run(backend_for, allowed)

    # Questions

    async def ask(
        self, context: ToolContext, key: Key, path: str | None, question: Question
    ) -> Any:
        """Return what a server answers; one that ends meanwhile is started again, and asked again.

        Args:
            context: The call.
            key: Which server.
            path: The file that is asked about; None for none.
            question: Asks it.

        Raises `ToolFailed`.
        """
        slot = self._slots.setdefault(key, _Slot())
        judged = self._judged.get((asker_of(context), context.call_id))
        may_start = judged is None or key in judged
        ended = self._ended
        retries = lost = 0
        while True:
            async with slot.lock:
                if ended != self._ended:
                    raise failure("no_server", "the toolkit has ended")
                server, documents = await self._running(slot, key, may_start=may_start)
                try:
                    document = await documents.follow(server, path)
                except ChangesLost:
                    lost += 1
                    await slot.end()
                    if lost > _MAX_RESTARTS:
                        text = "files of the project change too fast: call it again"
                        raise failure("changed", text) from None
                    continue
            # The question is written before another call gets its turn: nothing waits in between.
            try:
                return await question(server, documents, document)
            except ServerEnded:
                continue
            except ServerError as error:
                retries += 1
                if error.code not in _RETRIED or retries > _MAX_RETRIES:
                    text = one_line(str(error), SHOWN_CHARS)
                    raise failure("server_error", f"the language server answered: {text}") from None

    async def end_all(self) -> None:
        """End all servers."""
        self._ended += 1
        for slot in list(self._slots.values()):
            async with slot.lock:
                await slot.end()

    async def _running(
        self, slot: _Slot, key: Key, *, may_start: bool
    ) -> tuple[LanguageServer, Documents]:
        if slot.server is not None and slot.documents is not None:
            if slot.is_running:
                return slot.server, slot.documents
            slot.note_end(slot.server.ending())
            await slot.end()
        if not may_start:
            text = "the language server has to be started, and was not when the call was allowed:"
            raise failure("changed", f"{text} call it again")
        self._require_seldom(slot, key[1])
        try:
            documents = slot.documents = await THREADS.run(
                Documents, self._files, *key, self._needs_restart, undo=Documents.close
            )
            slot.stack.push_async_callback(THREADS.finish, documents.close)
            program = await THREADS.run(self._program, *key)
            options = INITIALIZATION_OPTIONS.get(os.path.basename(program.command))
            running = running_server(program, key[0], self._settings(key), options)
            slot.server = await slot.stack.enter_async_context(running)
        except (LaunchFailed, SandboxUnavailable) as error:
            slot.note_end(str(error))
            await slot.end()
            raise failure("no_server", f"the server for {key[1]} does not run: {error}") from None
        except BaseException:
            await slot.end()
            raise
        return slot.server, slot.documents

    def _needs_restart(self, path: str) -> bool:
        """Whether a changed file lets a server be started again.

        It must not read a secret that was made meanwhile; and what is installed, or how the project
        is set up, servers look at when they start.
        """
        *folders, name = path.split("/")
        if _PACKAGES.intersection(folders):
            return "__pycache__" not in folders and ".cache" not in folders
        if name in _SETTINGS:
            return True
        confined = self._config.confinement is not None
        return confined and bool(self._names.reason(f"/{path}", writes=False))

    def _require_seldom(self, slot: _Slot, language: str) -> None:
        while slot.ends and time.monotonic() - slot.ends[0] > _WITHIN_S:
            slot.ends.popleft()
        if len(slot.ends) > _MAX_RESTARTS:
            minutes = _WITHIN_S / 60
            text = f"the server for {language} has ended {len(slot.ends)} times in {minutes:.0f}"
            text += f" minutes, and is not started again for a while: {slot.last_end}"
            raise failure("no_server", text)

    # How a server is started

    @property
    def _path(self) -> str:
        return self._variables["PATH"]

    def _words(self, language: str) -> list[str]:
        """Return the command of a server. Raises `ToolFailed` if there is none."""
        if language in self._named:
            program, *arguments = self._named[language]
            found = found_program(program, self._path)
            if found is None:
                shown = one_line(program, SHOWN_CHARS)
                raise failure("no_server", f"the server for {language} is not installed: {shown}")
            return [found, *arguments]
        words = default_server(language, self._path)
        if words is None:
            usual = next(iter(DEFAULTS.get(language, ())), "")
            text = f"there is no language server for {language}: its operator names one, by"
            text += f" --server {language}=COMMAND or servers={{{language!r}: ...}}"
            text += f", or installs {usual}" if usual else ""
            raise failure("no_server", text)
        return words

    def _program(self, root: str, language: str) -> Program:
        """Return what is started; it blocks. Raises `ToolFailed` and `SandboxUnavailable`."""
        program, *arguments = self._words(language)
        return Program(
            program,
            arguments,
            env=self._variables,
            cwd=Path(root),
            limits=self._config.limits(),
            sandbox=self._confined(root, program),
        )

    def _confined(self, root: str, program: str) -> SandboxConfig | None:
        """Return what a server may reach: it reads the roots without their secrets."""
        allowed = self._config.confinement
        if allowed is None or allowed.backend == "subprocess":
            return allowed
        shown = (*self._files.roots.folders, *program_folders(program))
        read = [path for path in shown if not is_below_any(path, allowed.write)]
        allowed = allowed.model_copy(update={"read": (*allowed.read, *read)})
        if allowed.protect is False:
            return allowed
        hidden = confinement(allowed, root).hide
        secrets = find_protection(self._files.roots.folders, hidden, fills_git=False).hide
        if secrets and backend_for(allowed) == "landlock":
            # It would have to allow each file by itself, and new ones could not be read.
            text = "landlock cannot hide the secrets of a project from its language server: use"
            raise SandboxUnavailable(f"{text} bubblewrap, or set protect to false")
        return allowed.model_copy(update={"hide": (*hidden, *secrets)})

    def _settings(self, key: Key) -> Mapping[str, Any]:
        """Return the settings of a server, with the virtual environment of its project."""
        root, language = key
        given = self._config.settings
        of_python = given.get("python", {})
        if language != "python" or not isinstance(of_python, Mapping) or "pythonPath" in of_python:
            return given
        found = (Path(root, name, "bin", "python") for name in (".venv", "venv"))
        python = next((str(path) for path in found if os.access(path, os.X_OK)), None)
        return {**given, "python": {**of_python, "pythonPath": python}} if python else given
