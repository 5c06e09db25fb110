"""What a call makes of a file, found out before anything is written.

The tools do what is planned here, and an assessment shows its diff.
"""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext
from typing import NamedTuple

from toolbus import ToolContext
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.untrusted_text import one_line
from toolbus_toolkits.files.changes import MAX_FILE_BYTES, Change, Making
from toolbus_toolkits.files.diffs import Block, lines_of, unified_diff
from toolbus_toolkits.files.reached import ReachedFiles, failure
from toolbus_toolkits.files.seen import Seen, Span
from toolbus_toolkits.files.text import UTF8, NotText, Text, count_of_lines, read_text
from toolbus_toolkits.workspace import Location

__all__ = ["CHANGE_THREADS", "Plan", "planned", "proven"]

_NO_FILE = "/dev/null"
_LARGE_BYTES = 2**20
"""From this size on a file waits for `_large_files`."""
CHANGE_THREADS = WorkerThreads("changes of files", 16)
"""Threads of their own: a change may wait 5 s for the lock of a file, or for other large files, and
on those of `FILE_THREADS` nobody could read meanwhile."""
_large_files = threading.BoundedSemaphore(4)
"""A file of 16 MiB takes up to 370 MiB of memory as texts and lines: not on 32 threads at once."""


class Plan(NamedTuple):
    """What a call makes of a file."""

    before: bytes | None
    """What is there; None if there is no file."""
    data: bytes
    token: str
    """The version that `data` is."""
    diff: str
    seen: Seen
    """What the caller has seen when it is done."""


def proven(
    files: ReachedFiles, context: ToolContext, location: Location, now: Seen, token: str | None
) -> Seen:
    """Return what the caller of a call has seen of the version that is there.

    A call with the token of that version needs none of what is known here. `now` is what is there,
    as seen as a whole.

    Raises `ToolFailed`: it has never read it, or has read another version.
    """
    name = files.name_of(location)
    seen = files.seen.of(context, location.path)
    if token is None and seen is None:
        text = f"{name} exists, and you have not read it: read it first"
        raise failure("never_read", text)
    if token not in (None, now.token) and seen and seen.token == now.token:
        text = f"{name} has another version than that of the token, and you have seen it: give"
        raise failure("changed", f"{text} the token of your last read or change, or none")
    if token not in (None, now.token) or (token is None and seen and seen.token != now.token):
        raise failure("changed", f"{name} has changed since you have read it: read it again")
    # A token alone proves that it was read, such as by another host. What is known here is better.
    if seen is None or seen.token != now.token or seen.is_whole:
        return now
    return seen


def planned(
    files: ReachedFiles,
    context: ToolContext,
    location: Location,
    change: Change,
    *,
    token: str | None,
    max_diff_chars: int,
) -> Plan:
    """Return what a call makes of a file. Nothing is written.

    Raises `ToolFailed` and `OSError`.
    """
    is_large = location.status is not None and location.status.st_size >= _LARGE_BYTES
    with _large_files if is_large else nullcontext():
        name = files.name_of(location)
        before = None
        text = None
        seen = None
        if location.status is not None and isinstance(change, Making):
            raise failure("exists", f"{name} is there already, and is not replaced")
        if location.status is not None:
            before = _bytes_of(location, name)
            try:
                now, text = read_text(before)
            except NotText as error:
                words = f"{name} is no text: {error}; use `get` and `put`"
                raise failure("binary", words) from None
            whole = Seen.whole(now, count_of_lines(text.raw))
            seen = proven(files, context, location, whole, token)
        elif token is not None:
            raise failure("changed", f"{name} does not exist any more")
        changed = change.of(text, seen)
        target = text or Text(UTF8, "")
        data, after_token, after = _encoded(target, changed.raw)
        count = count_of_lines(after.raw)
        old = text.shown if text else ""
        diff = unified_diff(
            lines_of(old),
            lines_of(after.shown),
            _blocks(changed.spans, count_of_lines(old), count),
            names=(_NO_FILE if text is None else name, name),
            max_chars=max_diff_chars,
        )
        if not diff and data != before:
            diff = "[only line ends differ]" if before else "[an empty file]"
        known = (seen or Seen(after_token)).changed(after_token, count, changed.spans)
        return Plan(before, data, after_token, diff, known)


def _bytes_of(location: Location, name: str) -> bytes:
    """Read a file as a whole. Raises `ToolFailed` for a large one, and `OSError`."""
    with os.fdopen(location.open_file(), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        # One byte more: it may have grown, and some files have bytes that they do not tell of.
        data = b"" if size > MAX_FILE_BYTES else file.read(MAX_FILE_BYTES + 1)
    if max(size, len(data)) > MAX_FILE_BYTES:
        text = f"{name} has {max(size, len(data)):,} bytes, at most {MAX_FILE_BYTES:,} are changed"
        raise failure("too_large", f"{text} as text: use `get` and `put`")
    return data


def _encoded(target: Text, raw: str) -> tuple[bytes, str, Text]:
    """Return the bytes of a text, their version, and the text that the next `read` shows."""
    try:
        data = target.encoded(raw)
    except UnicodeEncodeError as error:
        character = raw[error.start]
        text = f"the encoding of the file, {target.encoding.label}, has no character"
        code = f"{one_line(character)!r} (U+{ord(character):04X})"
        raise failure("encoding", f"{text} {code}") from None
    if len(data) > MAX_FILE_BYTES:
        text = f"the file would have {len(data):,} bytes, at most {MAX_FILE_BYTES:,} are written"
        raise failure("too_large", f"{text} as text: use `put`")
    try:
        token, after = read_text(data)
    except NotText:
        raise failure("encoding", "a text with NUL would be no text any more") from None
    if after.raw != raw:
        text = f"in {target.encoding.label}, the encoding of the file, this text would be read as"
        hint = ": leave out the U+FEFF at its beginning" if raw.startswith("\ufeff") else ""
        raise failure("encoding", f"{text} another one{hint}")
    return data, token, after


def _blocks(spans: list[Span], old_count: int, new_count: int) -> list[Block]:
    """Return replaced lines as indices; a span may count a line behind the last one."""
    blocks = []
    shift = 0
    for first, removed, added in spans:
        start = first - 1
        old_stop = min(start + removed, old_count)
        new_stop = min(start + shift + added, new_count)
        blocks.append(Block(start, old_stop, start + shift, new_stop))
        shift += added - removed
    return blocks
