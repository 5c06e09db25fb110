"""What servers answer, as results: paths from the root, columns in characters, the text of lines.

A server may answer with any path. Of what is outside of the roots, and of secrets in them, a result
has the path and no text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote_to_bytes, urlsplit

from cattrs.errors import BaseValidationError, StructureHandlerNotFoundError
from lsprotocol import types
from lsprotocol.converters import get_converter
from typing_extensions import TypedDict

from toolbus import ToolFailed
from toolbus.untrusted_text import one_line, visible
from toolbus_toolkits.files.reached import ReachedFiles, failure
from toolbus_toolkits.lsp.documents import Document, read_text, split_lines

__all__ = [
    "MAX_RESULTS",
    "Diagnostic",
    "DiagnosticsResult",
    "HoverResult",
    "LocationsResult",
    "SourceLocation",
    "Symbol",
    "SymbolsResult",
    "diagnostics_result",
    "hover_result",
    "locations_result",
    "symbols_result",
    "utf16_column",
]

MAX_RESULTS = 200
"""A model reads them."""
_MAX_LINE_CHARS = 300
"""Of each result: a line of minified code may be one of megabytes."""
_MAX_TEXT_CHARS = 20_000
"""Of a hover: some generated types fill pages."""
_MAX_MESSAGE_CHARS = 2_000
"""Of a diagnostic: compilers write out the types of both sides."""
_MAX_READ_CHARS = 16 * 1024 * 1024
"""Of all files that an answer is about; of further ones no lines are shown."""
_NO_ANSWER = "the language server's answer is not of its protocol"

Severity: TypeAlias = Literal["error", "warning", "information", "hint"]

_structured = get_converter().structure


class SourceLocation(TypedDict):
    """A place in a file."""

    path: str
    """From the root; absolute, or a URI, where it is outside of it."""
    line: int
    column: int
    text: str | None
    """The line; None of a file outside of the roots, of a secret, and of the last of many large
    files."""


class LocationsResult(TypedDict):
    """Where something is defined or used."""

    symbol: str
    """The word at the place that was asked about."""
    locations: list[SourceLocation]
    truncated: bool
    """Whether there are more."""


class HoverResult(TypedDict):
    """What is known of a symbol."""

    symbol: str
    """The word at the place that was asked about."""
    text: str
    """Its type and its documentation, as a rule in Markdown; empty if nothing is known."""
    truncated: bool
    """Whether a part of the text is left out."""


class Symbol(SourceLocation):
    """A class, a function, a variable or another name."""

    name: str
    kind: str
    """Such as `class`, `function` or `variable`."""
    container: str
    """What it is in, such as the class of a method; empty at the top."""


class SymbolsResult(TypedDict):
    """Names, and where they are defined."""

    symbols: list[Symbol]
    truncated: bool
    """Whether there are more."""


class Diagnostic(TypedDict):
    """A mistake, or what may be one."""

    severity: Severity
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    code: str
    """The rule of the checker; empty if it names none."""
    source: str
    """The checker; empty if it is not named."""


class DiagnosticsResult(TypedDict):
    """What a checker finds in a file."""

    diagnostics: list[Diagnostic]
    """The errors first, each kind by its place."""
    truncated: bool
    """Whether there are more."""


def utf16_column(line: str, column: int) -> int:
    """Return the column of a line as the protocol counts it, from 0 on, in units of UTF-16.

    Args:
        line: The text of the line.
        column: In characters, from 1 on.
    """
    return len(line[: column - 1].encode("utf-16-le", "surrogatepass")) // 2


def _column(line: str | None, units: int) -> int:
    """Return a column of the protocol in characters, from 1 on."""
    if line is None or line.isascii():
        return units + 1
    data = line.encode("utf-16-le", "surrogatepass")[: 2 * units]
    return len(data.decode("utf-16-le", "ignore")) + 1


class _Lines:
    """The lines of files that answers are about; it blocks."""

    def __init__(self, files: ReachedFiles) -> None:
        self._files = files
        self._left = _MAX_READ_CHARS
        self._by_path: dict[str, tuple[str, list[str] | None]] = {}  # answers name a file often

    def place(self, uri: str, position: types.Position, name: str = "") -> SourceLocation:
        """Return a place as results have it.

        Where a name is given, it is that of the name: some servers tell where the whole begins.
        """
        path, lines = self._lines_of(uri)
        text = None
        if lines is not None and 0 <= position.line < len(lines):
            text = lines[position.line]
        column = _column(text, position.character)
        if text is not None and name:
            column = text.find(name, column - 1) + 1 or column
        return SourceLocation(
            path=path,
            line=position.line + 1,
            column=column,
            text=None if text is None else visible(text, _MAX_LINE_CHARS),
        )

    def column(self, uri: str, position: types.Position) -> int:
        """Return a column in characters."""
        return self.place(uri, position)["column"]

    def _lines_of(self, uri: str) -> tuple[str, list[str] | None]:
        path = _path_of(uri)
        if path is None:
            return one_line(uri, _MAX_LINE_CHARS), None
        if path not in self._by_path:
            self._by_path[path] = self._read(path)
        return self._by_path[path]

    def _read(self, path: str) -> tuple[str, list[str] | None]:
        try:
            with self._files.at(os.fsencode(path)) as location:
                shown = one_line(self._files.path_of(location))
                is_secret = bool(self._files.sensitive.reason(location.path, writes=False))
            if is_secret or self._left <= 0:
                return shown, None
            text = read_text(self._files, path)
            self._left -= len(text)
            return shown, split_lines(text)
        except ToolFailed:
            return one_line(path, _MAX_LINE_CHARS), None


def _path_of(uri: str) -> str | None:
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    path = os.fsdecode(unquote_to_bytes(parts.path))
    is_path = parts.scheme == "file" and not parts.netloc and path.startswith("/")
    return path if is_path and "\0" not in path else None


def _read_as(shape: Any, result: Any) -> Any:
    """Return a result in a shape of the protocol. Raises `ToolFailed`."""
    try:
        return _structured({"jsonrpc": "2.0", "id": 0, "result": result}, shape).result
    except (BaseValidationError, StructureHandlerNotFoundError, ValueError, TypeError, KeyError):
        raise failure("server_error", _NO_ANSWER) from None


def _first(result: Any) -> tuple[Any, bool]:
    """Return as much of a list as a result has, and whether that is all."""
    if isinstance(result, list) and len(result) > MAX_RESULTS:
        return result[:MAX_RESULTS], True
    return result, False


def locations_result(files: ReachedFiles, symbol: str, result: Any) -> LocationsResult:
    """Return the locations of an answer; it blocks. Raises `ToolFailed` for no answer."""
    first, is_cut = _first(result)
    found = _read_as(types.DefinitionResponse, first) or []
    lines = _Lines(files)
    places = []
    for location in found if isinstance(found, list | tuple) else [found]:
        if isinstance(location, types.LocationLink):
            place = lines.place(location.target_uri, location.target_selection_range.start)
        else:
            place = lines.place(location.uri, location.range.start)
        if place not in places:
            places.append(place)
    return LocationsResult(symbol=symbol, locations=places, truncated=is_cut)


def hover_result(symbol: str, result: Any) -> HoverResult:
    """Return the text of an answer. Raises `ToolFailed` for no answer."""
    found = _read_as(types.HoverResponse, result)
    contents = [] if found is None else found.contents
    parts = contents if isinstance(contents, list | tuple) else [contents]
    text = "\n\n".join(filter(None, map(_text_of, parts))).strip()
    is_cut = len(text) > _MAX_TEXT_CHARS
    return HoverResult(symbol=symbol, text=visible(text, _MAX_TEXT_CHARS), truncated=is_cut)


def _text_of(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, types.MarkupContent):
        return part.value
    if isinstance(part, types.MarkedStringWithLanguage):
        return f"```{part.language}\n{part.value}\n```"
    raise failure("server_error", _NO_ANSWER)


def symbols_result(
    files: ReachedFiles, document: Document | None, results: Iterable[Any]
) -> SymbolsResult:
    """Return the symbols of a file, or of a project; it blocks.

    Args:
        files: The files of the toolkit.
        document: The file; None for a project.
        results: The answers of servers.

    Raises `ToolFailed` for no answer.
    """
    lines = _Lines(files)
    symbols: list[Symbol] = []
    for result in results:
        for symbol in _symbols(lines, document, result):
            if len(symbols) == MAX_RESULTS:
                return SymbolsResult(symbols=symbols, truncated=True)
            symbols.append(symbol)
    return SymbolsResult(symbols=symbols, truncated=False)


def _symbols(lines: _Lines, document: Document | None, result: Any) -> Iterator[Symbol]:
    shape = types.WorkspaceSymbolResponse if document is None else types.DocumentSymbolResponse
    left = [("", symbol) for symbol in reversed(_read_as(shape, result) or [])]
    while left:
        container, symbol = left.pop()
        if isinstance(symbol, types.DocumentSymbol):
            assert document is not None
            place = lines.place(document.uri, symbol.selection_range.start)
            left += [(symbol.name, inner) for inner in reversed(symbol.children or [])]
        else:
            container = symbol.container_name or ""
            place = lines.place(symbol.location.uri, _start_of(symbol.location), symbol.name)
        yield Symbol(
            **place,
            name=one_line(symbol.name, _MAX_LINE_CHARS),
            kind=_kind(symbol.kind),
            container=one_line(container, _MAX_LINE_CHARS),
        )


def _start_of(location: Any) -> types.Position:
    # A `WorkspaceSymbol` may be of a file alone.
    found = getattr(location, "range", None)
    return types.Position(0, 0) if found is None else found.start


def _kind(kind: types.SymbolKind | int) -> str:
    return kind.name.lower() if isinstance(kind, types.SymbolKind) else "other"


_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "information", "hint")


def diagnostics_result(files: ReachedFiles, document: Document, items: Any) -> DiagnosticsResult:
    """Return the diagnostics of a file; it blocks. Raises `ToolFailed` for no answer."""
    report = {"kind": "full", "items": items}
    found = _read_as(types.DocumentDiagnosticResponse, report).items
    lines = _Lines(files)
    # Without a severity it is for the client to choose one.
    ordered = sorted(found, key=lambda item: (item.severity or 1, _place_of(item.range.start)))
    return DiagnosticsResult(
        diagnostics=[_diagnostic(lines, document.uri, item) for item in ordered[:MAX_RESULTS]],
        truncated=len(ordered) > MAX_RESULTS,
    )


def _place_of(position: types.Position) -> tuple[int, int]:
    return position.line, position.character


def _diagnostic(lines: _Lines, uri: str, found: types.Diagnostic) -> Diagnostic:
    start, end = found.range.start, found.range.end
    message = found.message if isinstance(found.message, str) else found.message.value
    return Diagnostic(
        severity=_SEVERITIES[(found.severity or 1) - 1],
        line=start.line + 1,
        column=lines.column(uri, start),
        end_line=end.line + 1,
        end_column=lines.column(uri, end),
        message=visible(message, _MAX_MESSAGE_CHARS),
        code="" if found.code is None else one_line(str(found.code), _MAX_LINE_CHARS),
        source=one_line(found.source or "", _MAX_LINE_CHARS),
    )
