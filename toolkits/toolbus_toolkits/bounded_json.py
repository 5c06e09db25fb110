"""JSON from files and servers: bounded, and refused with one set of words.

The form of a value is the caller's to check. Duplicate keys are refused: readers differ in which
one counts. The answer of a server that has acted is read by `answer_of` instead, which refuses
nothing that Python's `json` reads.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from toolbus.chunks.carried_values import SourceText
from toolbus.chunks.json_values import MAX_JSON_DEPTH, is_plain
from toolbus.untrusted_text import one_line

__all__ = ["MAX_VALUES", "answer_of", "has_more_values", "parse_json", "read_json_file"]

MAX_VALUES = 500_000
"""Values of one text: an empty list takes 3 bytes there, and more than 60 in memory."""
_VALUE = re.compile(r'(?:[^",\[{]++|"(?:[^"\\]++|\\.)*+"?)*+(?:[,\[{]|\Z)', re.DOTALL)
r"""Up to the comma or bracket before a value; those within strings are passed over. `\Z`, without
which the end of a text would be searched again from each of its characters, adds two matches."""
_OWN_FILE_BYTES = 64 * 1024 * 1024
"""Also a file of the user may have grown without end, and is read into memory."""
_LARGE_INTEGER_CHARS = 20
"""The longest integer that may fit 64 bits, with its sign."""
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]|NaN|-?Infinity', re.DOTALL)


def answer_of(text: str) -> Any:
    """Return the value of a JSON text that a server sent; nothing of it is lost.

    Numbers that no value here holds (beyond 64 bits, `1e400`, `NaN`), and objects and lists below
    `MAX_JSON_DEPTH` levels, are a `SourceText`: their source. Of two equal keys the last one
    counts, as for most readers.

    Raises `ValueError` if it is not JSON, and for more than `MAX_VALUES` values.
    """
    if has_more_values(text, MAX_VALUES):
        raise ValueError(f"has more than {MAX_VALUES:,} values")
    text = text.removeprefix("\ufeff")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    except (ValueError, RecursionError):  # too many digits, or too deep
        pass
    else:
        if isinstance(value, dict | list) and is_plain(value):
            return value
    constants: list[str] = []
    shallow = _without_depth(text, constants)
    sources = iter(constants)
    try:
        return json.loads(
            shallow,
            parse_int=_integer_or_source,
            parse_float=_number_or_source,
            parse_constant=lambda _: SourceText(next(sources)),
        )
    except RecursionError:  # brackets that are never closed
        raise ValueError("is not JSON: it has no end") from None


def _without_depth(text: str, constants: list[str]) -> str:
    """Return a JSON text with `NaN` in place of what is nested too deep.

    Args:
        text: The JSON text.
        constants: Gets the source of each such place, and of each constant, in order.
    """
    pieces: list[str] = []
    depth = end = start = 0
    for token in _TOKEN.finditer(text):
        found = token[0]
        if found in "[{":
            depth += 1
            if depth == MAX_JSON_DEPTH + 1:
                start = token.start()
        elif found in "]}":
            if depth == MAX_JSON_DEPTH + 1:
                pieces += [text[end:start], "NaN"]
                end = token.end()
                constants.append(text[start:end])
            depth -= 1
        elif found[0] != '"' and depth <= MAX_JSON_DEPTH:
            constants.append(found)
    return "".join([*pieces, text[end:]])


def _integer_or_source(digits: str) -> Any:
    if len(digits) <= _LARGE_INTEGER_CHARS:
        value = int(digits)
        if -(2**63) <= value < 2**64:
            return value
    return SourceText(digits)


def _number_or_source(source: str) -> Any:
    value = float(source)
    return value if isfinite(value) else SourceText(source)


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises `ValueError` that says what is wrong as a predicate, such as `is not JSON: ...`: also for
    a duplicate key, deep nesting, a number of too many digits, and more than `MAX_VALUES` values.
    """
    if has_more_values(text, MAX_VALUES):
        raise ValueError(f"has more than {MAX_VALUES:,} values")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("nests too deep") from None


def has_more_values(text: str, limit: int) -> bool:
    """Whether a JSON text has more values than a limit, counted without reading it."""
    if text.count(",") + text.count("[") + text.count("{") <= limit:  # those in strings too
        return False
    return next(islice(_VALUE.finditer(text), limit + 2, None), None) is not None


def read_json_file(
    path: Path,
    max_bytes: int = _OWN_FILE_BYTES,
    *,
    missing: Any = None,
    parse: Callable[[str], Any] = parse_json,
) -> Any:
    """Return the value of a file in UTF-8.

    Args:
        path: The file.
        max_bytes: The size that it may have: whole MiB; by default that of a file of our own.
        missing: Returned if there is no file; without it that is an error.
        parse: Reads the text.

    Raises:
        ValueError: It cannot be read, or is refused; the message begins with the path.
    """
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise ValueError(f"is larger than {max_bytes >> 20} MiB")
        # Lone surrogates, which JSON may have, are read as our own files have them.
        return parse(data.decode("utf-8-sig", "surrogatepass"))
    except OSError as error:
        if missing is not None and isinstance(error, FileNotFoundError):
            return missing
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"has the key {one_line(name, 64)!r} twice in one object: remove one")
    return found


def _integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        raise ValueError("has a number with too many digits") from None
