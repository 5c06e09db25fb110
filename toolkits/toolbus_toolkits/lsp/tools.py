"""The tools of the toolkit `lsp`."""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from toolbus import Assessment, ToolContext, ToolFailed
from toolbus_toolkits.callers import seconds_to_answer
from toolbus_toolkits.files.assessing import Assessor
from toolbus_toolkits.files.reached import Path, ReachedFiles, RootsConfig, failure
from toolbus_toolkits.launcher.command_tools import CommandTool, CommandTools
from toolbus_toolkits.lsp.answers import (
    DiagnosticsResult,
    HoverResult,
    LocationsResult,
    SymbolsResult,
    diagnostics_result,
    hover_result,
    locations_result,
    symbols_result,
    utf16_column,
)
from toolbus_toolkits.lsp.config import LspConfig
from toolbus_toolkits.lsp.documents import THREADS, Document, Documents
from toolbus_toolkits.lsp.languages import suffixes_of
from toolbus_toolkits.lsp.server import LanguageServer, ServerEnded
from toolbus_toolkits.lsp.servers import Key, Question, Servers
from toolbus_toolkits.lsp.typescript import TYPESCRIPT, typescript_diagnostics

__all__ = ["LspTools"]

_MAX_ANSWER_S = 60.0
"""A server that is asked while it reads a large project answers when it has read it."""
_MAX_PUBLISH_S = 10.0
"""A server may never publish diagnostics of a file; the caller would wait for its deadline."""
_SETTLED_S = 1.0
"""A server that tells diagnostics by itself may tell those of the syntax first."""
_MAX_WORD_CHARS = 100
"""On both sides of a place: a result has the word, and lines may be one word of megabytes."""
_MAX_ENTRIES = 20_000
"""Of the folders that are looked through for a file of a language, some 50 ms."""

Number = Annotated[int, Field(ge=1)]
Query = Annotated[str, Field(min_length=1, max_length=1_000)]


class LspTools(CommandTools):
    """The tools of one toolkit. Raises `ValueError` if a folder does not exist."""

    def __init__(self, config: LspConfig) -> None:
        reached = RootsConfig(root=config.workdir, further_roots=config.further_roots)
        self.files = ReachedFiles(reached)
        self.servers = Servers(self.files, config)
        self._assessor = Assessor(self.files)
        functions = (
            ("definition", self._definition, self._assess_file),
            ("references", self._references, self._assess_file),
            ("hover", self._hover, self._assess_file),
            ("diagnostics", self._diagnostics, self._assess_file),
            ("symbols", self._symbols, self._assess_symbols),
        )
        self.all: list[CommandTool] = []
        for name, function, assess in functions:
            tool = CommandTool(
                function,
                name=name,
                # What it starts may do more, unless it is confined: the assessment says which.
                idempotent=True,
                assess=assess,
            )
            tool.group = self
            self.all.append(tool)

    async def probe(self) -> None:
        """Raise `SandboxUnavailable` if nothing confines servers as they have to be."""
        await self.servers.probe()

    async def end_all(self) -> None:
        """End all servers."""
        await self.servers.end_all()

    async def _definition(
        self, context: ToolContext, path: Path, line: Number, column: Number
    ) -> LocationsResult:
        """Find where a name is defined.

        Args:
            context: The call.
            path: A file that uses the name.
            line: The line of the name, from 1 on.
            column: A column of the name in its line, from 1 on.
        """
        symbol, found = await self._at(context, path, line, column, "textDocument/definition")
        return await THREADS.run(locations_result, self.files, symbol, found)

    async def _references(
        self, context: ToolContext, path: Path, line: Number, column: Number
    ) -> LocationsResult:
        """Find where a name is defined and used in the project, at most 200 places.

        Args:
            context: The call.
            path: A file with the name.
            line: The line of the name, from 1 on.
            column: A column of the name in its line, from 1 on.
        """
        options = {"context": {"includeDeclaration": True}}
        method = "textDocument/references"
        symbol, found = await self._at(context, path, line, column, method, options)
        return await THREADS.run(locations_result, self.files, symbol, found)

    async def _hover(
        self, context: ToolContext, path: Path, line: Number, column: Number
    ) -> HoverResult:
        """Show the type and the documentation of a name.

        Args:
            context: The call.
            path: A file with the name.
            line: The line of the name, from 1 on.
            column: A column of the name in its line, from 1 on.
        """
        symbol, found = await self._at(context, path, line, column, "textDocument/hover")
        return await THREADS.run(hover_result, symbol, found)

    async def _diagnostics(self, context: ToolContext, path: Path) -> DiagnosticsResult:
        """Check a file as it is now: its errors, warnings and hints, at most 200.

        Args:
            context: The call.
            path: The file.
        """
        document: Document | None = None

        async def question(
            server: LanguageServer, documents: Documents, opened: Document | None
        ) -> Any:
            nonlocal document
            document = _required(opened)
            if server.program in TYPESCRIPT:
                return await typescript_diagnostics(server, document)
            if not server.pulls_diagnostics:
                found = await _published(server, documents, document)
                if not server.pulls_diagnostics:
                    return found
            params = {"textDocument": {"uri": document.uri}}
            report = await server.ask("textDocument/diagnostic", params)
            return report.get("items") if isinstance(report, dict) else None

        items = await self._asked(context, *await self._place(context, path), question)
        return await THREADS.run(diagnostics_result, self.files, _required(document), items)

    async def _symbols(
        self, context: ToolContext, path: Path | None = None, query: Query | None = None
    ) -> SymbolsResult:
        """List the names that a file defines, or find names in the project, at most 200.

        Args:
            context: The call.
            path: The file. With `query`, one of the language that is searched.
            query: A name or a part of one, which is looked for in the whole project.
        """
        if query is None and path is None:
            raise failure("no_path", "give `path` for the names of a file, or `query` for a search")
        places = [await self._place(context, path)] if path else await THREADS.run(self._of_each)
        document: Document | None = None

        async def question(
            server: LanguageServer, _documents: Documents, opened: Document | None
        ) -> Any:
            nonlocal document
            uri = _required(opened).uri
            found = await server.ask("textDocument/documentSymbol", {"textDocument": {"uri": uri}})
            if query is None:
                document = opened
                return found
            # By now it has read the project: before, some servers find nothing.
            return await server.ask("workspace/symbol", {"query": query})

        found = [await self._asked(context, *place, question) for place in places]
        return await THREADS.run(symbols_result, self.files, document, found)

    # Questions

    async def _at(
        self,
        context: ToolContext,
        path: str,
        line: int,
        column: int,
        method: str,
        options: dict[str, Any] | None = None,
    ) -> tuple[str, Any]:
        """Ask about a place in a file; return the word there, and the answer."""
        symbol = ""

        async def question(
            server: LanguageServer, _documents: Documents, opened: Document | None
        ) -> Any:
            nonlocal symbol
            document = _required(opened)
            text = _line_of(document, line, column)
            symbol = _word_at(text, column)
            position = {"line": line - 1, "character": utf16_column(text, column)}
            params = {"textDocument": {"uri": document.uri}, "position": position}
            return await server.ask(method, {**params, **(options or {})})

        found = await self._asked(context, *await self._place(context, path), question)
        return symbol, found

    async def _place(self, context: ToolContext, path: str) -> tuple[Key, str]:
        """Return the server of a file, and its real path. Raises `ToolFailed`."""
        try:
            return await THREADS.run(self._find, context, path)
        except ToolFailed as error:
            error.executed = "no"
            raise context.refuse(error) from None

    def _find(self, context: ToolContext | None, path: str) -> tuple[Key, str]:
        with self.files.at(path, context) as location:
            os.close(location.open_file())  # raises for what is no file
            return (location.root, self.servers.language_of(location.path)), location.path

    def _of_each(self) -> list[tuple[Key, str]]:
        """Return a file of each root and language that there are servers for."""
        places = []
        for root in self.files.roots.folders:
            left = {language: suffixes_of(language) for language in self.servers.languages()}
            for path in _files_below(root):
                suffix = os.path.splitext(path)[1].lower()
                for language in [name for name, ends in left.items() if suffix in ends]:
                    del left[language]
                    places.append(((root, language), path))
                if not left:
                    break
        if not places:
            raise failure("no_server", "there is no file of a language that there is a server for")
        return places

    async def _asked(self, context: ToolContext, key: Key, path: str, question: Question) -> Any:
        seconds = seconds_to_answer(context, _MAX_ANSWER_S)
        try:
            async with asyncio.timeout(seconds):
                return await self.servers.ask(context, key, path, question)
        except TimeoutError:
            text = f"the language server has not answered in {seconds:.0f} s: it may be reading"
            text += " the project, and answer a later call"
            raise ToolFailed(text, retryable=True, details={"reason": "timeout"}) from None

    # Assessments

    def _assess_file(self, context: ToolContext, path: str) -> Assessment:
        assessment = self._assessor.reading(context, path)
        try:
            keys = [self._find(None, path)[0]]
        except ToolFailed:  # the call will say why; if there is a file by then, it starts nothing
            keys = []
        return self._with_start(context, assessment, keys)

    def _assess_symbols(self, context: ToolContext, path: str | None = None) -> Assessment:
        if path is not None:
            return self._assess_file(context, path)
        assessment = Assessment("allow", read_only=True, message="looks for names")
        keys: list[Key] = []
        with suppress(ToolFailed):
            keys = [key for key, _ in self._of_each()]
        return self._with_start(context, assessment, keys)

    def _with_start(
        self, context: ToolContext, assessment: Assessment, keys: Iterable[Key]
    ) -> Assessment:
        """Return an assessment that asks if servers are started that may do anything."""
        if self.servers.reads_only():
            self.servers.judge(context, None)
            return assessment
        starting = [key for key in keys if not self.servers.runs(key)]
        self.servers.judge(context, starting)
        if not starting:
            return assessment
        names = ", ".join(dict.fromkeys(language for _, language in starting))
        text = f"{assessment.message}, and starts the language server for {names}, which may run"
        text += " programs of the project, without a sandbox that keeps it to reading"
        behavior = "ask" if assessment.behavior in ("allow", "pass") else assessment.behavior
        return replace(assessment, behavior=behavior, read_only=False, message=text)


def _required(document: Document | None) -> Document:
    assert document is not None
    return document


def _line_of(document: Document, line: int, column: int) -> str:
    """Return a line. Raises `ToolFailed` for a place that is not in the file."""
    if line > len(document.lines):
        text = f"the file has {len(document.lines):,} lines, and no line {line:,}"
        raise failure("no_such_place", text)
    text = document.lines[line - 1]
    if column > len(text) + 1:
        words = f"line {line:,} has {len(text):,} characters, and no column {column:,}"
        raise failure("no_such_place", words)
    return text


def _word_at(text: str, column: int) -> str:
    before = re.search(r"\w*\Z", text[max(0, column - 1 - _MAX_WORD_CHARS) : column - 1])
    after = re.match(r"\w*", text[column - 1 : column - 1 + _MAX_WORD_CHARS])
    return (before[0] if before else "") + (after[0] if after else "")


async def _published(server: LanguageServer, documents: Documents, document: Document) -> list[Any]:
    """Return the diagnostics of a server that tells them by itself, for the text as it is now."""
    published = server.published[document.uri]
    published.clear()
    documents.repeat(server, document.path)
    try:
        async with asyncio.timeout(_MAX_PUBLISH_S):
            await published.wait()
    except TimeoutError:
        text = f"the language server has told nothing of the file in {_MAX_PUBLISH_S:.0f} s"
        raise ToolFailed(text, retryable=True, details={"reason": "timeout"}) from None
    with suppress(TimeoutError):
        while not (server.has_ended or server.pulls_diagnostics):
            published.clear()
            async with asyncio.timeout(_SETTLED_S):
                await published.wait()
    if server.has_ended:
        raise ServerEnded
    return server.diagnostics.get(document.uri, [])


def _files_below(root: str) -> Iterable[str]:
    """Yield the files of a project, the upper folders first; not all of a large one."""
    folders = deque([root])
    left = _MAX_ENTRIES
    while folders and left > 0:
        with suppress(OSError), os.scandir(folders.popleft()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                left -= 1
                is_own = not entry.name.startswith(".") and entry.name != "node_modules"
                if entry.is_file(follow_symlinks=False):
                    yield entry.path
                elif is_own and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
