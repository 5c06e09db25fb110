"""JSON within limits: what is read, and the words for what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from toolbus_toolkits.bounded_json import MAX_VALUES, parse_json, read_json_file

TEXT = 'a, [b], {"c"} \\" \\\\'


def test_a_file_is_read_with_its_odd_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {"": [TEXT, -1, 2.5e3, None, True, {}], TEXT: "\ud800 ü"}
    path.write_bytes(
        b"\xef\xbb\xbf" + json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")
    )
    assert read_json_file(path, 1 << 20) == value
    assert read_json_file(tmp_path / "missing.json", 1 << 20, missing=[]) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not JSON: Expecting value: line 1"),
        (b'"' + b'\\"' * 500_000, "is not JSON: Unterminated string"),
        (b"\xff", "is not UTF-8"),
        (b" " * (1 << 20) + b"1", "is larger than 1 MiB"),
        (b"[" * 100_000, "nests too deep"),
        (b"[" + b"1" * 5_000 + b"]", "has a number with too many digits"),
        (b'{"a": {"b\\n": 1, "c": 1, "b\\n": 2}}', "has the key 'b\\\\n' twice"),
        (None, "cannot be read: No such file"),
        ("folder", "cannot be read: Is a directory"),
    ],
)
def test_a_file_is_refused_with_its_path(tmp_path: Path, content: object, words: str) -> None:
    path = tmp_path / "a.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "folder":
        path.mkdir()
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: {words}')}"):
        read_json_file(path, 1 << 20)


def test_the_values_of_a_text_are_counted_before_it_is_parsed() -> None:
    full = json.dumps([TEXT] * MAX_VALUES)
    assert len(parse_json(full)) == MAX_VALUES
    with pytest.raises(ValueError, match="has more than 500,000 values"):
        parse_json(full[:-1] + ", is not JSON")
