"""What a model gets of results and files: one text, and the files that its API takes.

All adapters use it, so that a file is judged, named and cut in one way. Pure.
"""

from __future__ import annotations

from base64 import b64encode
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from toolbus.chunks.carried_values import repaired
from toolbus.chunks.chunk_types import FileChunk
from toolbus.chunks.json_values import is_encodable, shown
from toolbus.errors import Cancelled, InvalidArguments
from toolbus.turns.tool_use import ToolResult, ToolUse, file_label

__all__ = [
    "MAX_RESULT_CHARS",
    "MAX_RESULT_FILES",
    "MAX_RESULT_FILE_BYTES",
    "ResultParts",
    "Takes",
    "data_url",
    "media_type",
    "paired",
    "result_parts",
    "user_parts",
    "within",
]

MAX_RESULT_CHARS = 400_000
"""How long the text of one result may be: about 100,000 tokens, half of what most models can read.
A longer one would end the conversation, since it is part of each further request."""
_END_CHARS = 100_000
"""How much of a longer text is its end, where programs write what went wrong."""
_NOTE_CHARS = 100
"""Room for the line that says how much is missing."""
# How many files of one result are sent, and their size together: 20 MiB in Base64, the smallest
# limit of a request (Gemini, inline data). What is beyond is only named in the text.
MAX_RESULT_FILES = 20
MAX_RESULT_FILE_BYTES = 15 * 2**20

Takes: TypeAlias = Callable[[FileChunk], bool]
"""Whether an API takes a file that is in memory; `media_type` says what it is."""

_UNTYPED = frozenset({"", "application/octet-stream", "binary/octet-stream"})
_ALIASES = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "application/x-pdf": "application/pdf",
}
_CHECKED = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"})
"""Types whose files begin with a signature."""
_BINARY = ("image/", "audio/", "video/", "font/", "application/pdf")
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


class ResultParts(NamedTuple):
    """What a model gets of one result."""

    text: str
    """Never empty. Files that are sent are named in it: `[file 'a.png', image/png, 9 bytes]`."""
    files: tuple[FileChunk, ...]
    """The files that the provider takes, in order, in memory."""


def result_parts(result: ToolResult, takes: Takes) -> ResultParts:
    """Return the words of a result for a model, and the files that are sent beside them.

    A file that the provider does not take is in the text, if it is text in UTF-8; else its name is.
    A text of more than `MAX_RESULT_CHARS` is cut in its middle, and says how much is missing.
    """
    files: list[FileChunk] = []
    left = MAX_RESULT_FILE_BYTES
    for chunk in result.chunks:
        if len(files) == MAX_RESULT_FILES:
            break
        if isinstance(chunk, FileChunk) and chunk.is_whole and 0 < len(chunk.data) <= left:
            if takes(chunk):
                files.append(chunk)
                left -= len(chunk.data)
    sent = {id(file) for file in files}
    text = result.for_model(named=lambda file: id(file) in sent)
    if len(text) > MAX_RESULT_CHARS:
        start = text[: MAX_RESULT_CHARS - _END_CHARS - _NOTE_CHARS]
        missing = len(text) - len(start) - _END_CHARS
        text = f"{start}\n[{missing} characters are left out here]\n{text[-_END_CHARS:]}"
    # Results of a room have no lone surrogates; a tool in this process may put one in an error.
    return ResultParts(text if is_encodable(text) else repaired(text), tuple(files))


def within(most: int, takes: Takes) -> Takes:
    """Return what takes files until they have so many bytes together, before Base64.

    Results of one reply go into one message: each alone may be within the limits of a request.
    """
    left = most

    def takes_more(file: FileChunk) -> bool:
        nonlocal left
        if len(file.data) > left or not takes(file):
            return False
        left -= len(file.data)
        return True

    return takes_more


def paired(uses: Sequence[ToolUse], results: Iterable[ToolResult]) -> list[ToolResult]:
    """Return one result for each use, in the order of the uses.

    A use without a result gets one that says it was interrupted, or is invalid, since providers
    refuse a use that has none. Uses with one id get the results with that id in order.

    Raises `ValueError` for a result of no use: it belongs to another reply.
    """
    found: defaultdict[str, deque[ToolResult]] = defaultdict(deque)
    for result in results:
        found[result.id].append(result)
    pairs = [found[use.id].popleft() if found[use.id] else _missing(use) for use in uses]
    if left := [result for same in found.values() for result in same]:
        raise ValueError(f"the reply has no use for the result {shown(left[0].id)}")
    return pairs


def _missing(use: ToolUse) -> ToolResult:
    if use.invalid:
        refusal = InvalidArguments(use.invalid)
        return ToolResult(use.id, use.name, "failed", error=refusal, executed="no")
    error = Cancelled("no result was kept of this call", executed="maybe")
    return ToolResult(use.id, use.name, "interrupted", error=error, executed="maybe")


def user_parts(
    text: str, files: Iterable[FileChunk], takes: Takes, most: int | None = None
) -> list[str | FileChunk]:
    """Return the parts of a user's message, in order: the text, then the files.

    A file that the provider does not take, and that is text in UTF-8, is a text with its name.
    The others have at most `most` bytes together, before Base64; None means unlimited.

    Raises `ValueError` for a message without text and files, for a file that is not in memory or
    that the provider does not take, and for files that are too large together.
    """
    parts: list[str | FileChunk] = [repaired(text)] if text.strip() else []
    for file in files:
        if not isinstance(file, FileChunk):
            raise ValueError(f"files are FileChunks, not {shown(file)}")
        if not file.is_whole:
            raise ValueError(
                f"{file_label(file)}: read it first, FileChunk(await file.read(), ...)"
            )
        parts.append(file if takes(file) else f"{file_label(file)}\n{_text_of(file)}")
    if not parts:
        raise ValueError("a message of the user needs a text or a file")
    if (
        most is not None
        and sum(len(part.data) for part in parts if not isinstance(part, str)) > most
    ):
        raise ValueError(f"the files of a message have at most {most:,} bytes together")
    return parts


def _text_of(file: FileChunk) -> str:
    try:
        if file.data and not file.mime_type.lower().startswith(_BINARY):
            return file.data.decode()
    except UnicodeDecodeError:
        pass
    raise ValueError(f"{file_label(file)}: the model's API does not take such a file")


def media_type(file: FileChunk) -> str:
    """Return the media type of a file in memory, in lower case and without parameters.

    PNG, JPEG, GIF, WebP and PDF are known by their first bytes, whatever the name says: an API
    refuses the whole request, and each further one, if one file is not what its type says. The
    type is empty for a file that is declared to be one of these and is not.
    """
    declared = file.mime_type.partition(";")[0].strip().lower()
    declared = _ALIASES.get(declared, declared)
    if declared not in _CHECKED and declared not in _UNTYPED:
        return declared
    head = bytes(file.data[:16])
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    found = next((kind for signature, kind in _SIGNATURES if head.startswith(signature)), "")
    if declared in _CHECKED:
        return found
    return found or declared


def data_url(file: FileChunk) -> str:
    """Return a file as a `data:` URL of its `media_type`."""
    return f"data:{media_type(file)};base64,{b64encode(file.data).decode()}"
