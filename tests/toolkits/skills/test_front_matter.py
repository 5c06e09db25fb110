"""The front matter of a Markdown text: what is read, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml as pyyaml

from toolbus_toolkits.skills import front_matter
from toolbus_toolkits.skills.front_matter import (
    MAX_DEPTH,
    MAX_FRONT_MATTER_BYTES,
    MAX_VALUES,
    read_front_matter,
)


@pytest.fixture(autouse=True, params=["libyaml", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run each test with both parsers of PyYAML; a machine may lack the first."""
    front_matter._loader_class.cache_clear()
    if request.param == "python":
        monkeypatch.delattr(pyyaml, "CSafeLoader", raising=False)
    yield
    front_matter._loader_class.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected", "body"),
    [
        ("---\nname: 'a'\n---\nname: body\n", {"name": "a"}, "name: body\n"),
        ("---\r\nname: a\r\n---\r\nText\r\n", {"name": "a"}, "Text\r\n"),
        ("\ufeff---\nt: >\n  one\n  two\n...\n", {"t": "one two\n"}, ""),
        ("---\nd: 2026-01-02\nb: yes\nn: 1.5\n---", {"d": "2026-01-02", "b": True, "n": 1.5}, ""),
        ("---\nl:\n  - a\n  - [b]\nm: {k: null}\n---\n", {"l": ["a", ["b"]], "m": {"k": None}}, ""),
        ("---\nname: a\n---\n\n---\nmore\n", {"name": "a"}, "\n---\nmore\n"),
    ],
)
def test_front_matter_and_body_are_read(text: str, expected: dict[str, Any], body: str) -> None:
    assert read_front_matter(text) == (expected, body)


_BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]"


@pytest.mark.parametrize(
    ("yaml", "words"),
    [
        (_BOMB, "has an alias"),
        ("a: &a [*a]", "has an alias"),
        ("a: " + "[" * 100, f"deeper than {MAX_DEPTH}"),
        ("a: " + "{b: " * 100, f"deeper than {MAX_DEPTH}"),
        ("a: " + "[" * 10_000, "nest"),
        ("a: [" + "1," * MAX_VALUES + "]", f"more than {MAX_VALUES} values"),
        ("a: " + "x" * MAX_FRONT_MATTER_BYTES, f"more than {MAX_FRONT_MATTER_BYTES} bytes"),
        ("a: !!python/object/apply:os.system [ls]", "has a tag"),
        ("a: !!binary aGk=", "has a tag"),
        ("name: a\nname: b", "the key 'name' occurs twice"),
        ("a: {b: {1: x}}", r"/a/b: the key 1 must be text"),
        ("a: [.inf]", "/a/0: the number is too large"),
        ("a: .nan", "/a: the number is too large"),
        ("a: " + "9" * 20, "/a: the number is too large"),
        ("a: " + "9" * 10_000, "a number that is too long"),
        ("a: 1" + ":1" * 10_000, "a number that is too long"),
        ("a: b: c", r"is not YAML: .* into quotes \(line 2\)"),
        ("- a", "must be a mapping"),
        ("", "must be a mapping"),
        ("a: \x01", "is not YAML"),
        ('a: {b: "\\ud800"}', "/a/b: the text has half|not YAML"),
        ('a: {"\\udfff": b}', "/a: the text has half|not YAML"),
    ],
)
def test_yaml_that_is_large_or_no_plain_data_is_refused(yaml: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_front_matter(f"---\n{yaml}\n---\nBody\n")


@pytest.mark.parametrize("text", ["", "# Title\n", "\n---\na: 1\n---\n", "----\na: 1\n---\n"])
def test_text_without_front_matter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="there is no front matter: the first line must be ---"):
        read_front_matter(text)


def test_front_matter_that_does_not_end_is_refused() -> None:
    with pytest.raises(ValueError, match="the front matter does not end"):
        read_front_matter("---\na: 1\n")
