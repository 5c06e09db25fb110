"""Reads the YAML block at the top of a Markdown text.

The YAML is parsed by PyYAML, and only plain data is made of it. Size, depth and number of values
are bounded while it is parsed, and aliases are refused: a small text cannot become a large value.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from toolbus.untrusted_text import one_line

if TYPE_CHECKING:
    import yaml

__all__ = [
    "MAX_DEPTH",
    "MAX_FRONT_MATTER_BYTES",
    "MAX_VALUES",
    "read_front_matter",
    "read_yaml",
    "require_yaml",
]

MAX_FRONT_MATTER_BYTES = 64 * 1024
"""In UTF-8: others write it, and YAML takes long to read."""
MAX_DEPTH = 16
"""Of lists and mappings: each level takes frames of Python."""
MAX_VALUES = 5_000
"""How many values, keys included, a front matter may have."""
_FENCE = re.compile(r"^(?:---|\.\.\.)[ \t]*\r?$", re.MULTILINE)
_FIRST_LINE = re.compile(r"\ufeff?---[ \t]*\r?\n")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONG_NUMBER = re.compile(r"[-+0-9][0-9_:.]{64}")
"""To the base of 60 it would take time in proportion to the square of its length."""
_MAX_NUMBER = 2**63
"""A larger one cannot be sent (PROTOCOL.md, BODY-1)."""


def read_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Return the front matter of a text as JSON values, and the body below it.

    The front matter stands between a first line `---` and the next line `---` or `...`. Dates stay
    text.

    Raises:
        ValueError: There is none, it is too large, or it is not one mapping of plain YAML.
        ModuleNotFoundError: PyYAML is not installed.
    """
    first = _FIRST_LINE.match(text)
    if first is None:
        raise ValueError("there is no front matter: the first line must be ---")
    last = _FENCE.search(text, first.end())
    if last is None:
        raise ValueError("the front matter does not end: a line --- is missing below it")
    body = text[last.end() :].removeprefix("\n")
    return read_yaml(text[first.end() : last.start()], first_line=2), body


def read_yaml(text: str, what: str = "the front matter", first_line: int = 1) -> dict[str, Any]:
    """Return one YAML mapping as JSON values; bounded, and raises, as `read_front_matter`.

    Args:
        text: The YAML.
        what: What it is, for messages.
        first_line: The number of its first line, for messages.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_FRONT_MATTER_BYTES:
        raise ValueError(f"{what} has more than {MAX_FRONT_MATTER_BYTES} bytes")
    yaml = require_yaml()
    loader = _loader_class()
    try:
        _check_events(yaml, yaml.parse(text, Loader=loader), what)
        found = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{what} is not YAML: {_problem(error, first_line)}") from None
    except RecursionError:
        raise ValueError(f"{what} is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError(f"{what} must be a mapping of names to values")
    _check_value(found, "")
    return found


def require_yaml() -> Any:
    """Return PyYAML. Raises `ModuleNotFoundError`, with the extra, if it is not installed."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "skills need PyYAML, which is not installed: pip install 'toolbus[skills]'",
            name=error.name,
        ) from None
    return yaml


@cache
def _loader_class() -> Any:
    """Return a safe loader that makes no dates and refuses a key that occurs twice."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            name, number = (keys.most_common(1) or [("", 0)])[0]
            if number > 1:
                problem = f"the key {one_line(name, 200)!r} occurs twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            made: dict[Any, Any] = super().construct_mapping(node, deep)
            return made

    Loader.yaml_implicit_resolvers = {
        first: [resolver for resolver in resolvers if resolver[0] != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in Loader.yaml_implicit_resolvers.items()
    }
    return Loader


def _check_events(yaml: Any, events: Iterator[yaml.Event], what: str) -> None:
    """Raise ValueError for what must not be built. Nothing is built from events alone."""
    depth = values = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"{what} has an alias (*name): write the value in full")
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if not isinstance(event, yaml.NodeEvent):
            continue
        values += 1
        depth += isinstance(event, yaml.CollectionStartEvent)
        if getattr(event, "tag", None) not in (None, "!", "tag:yaml.org,2002:str"):
            raise ValueError(f"{what} has a tag (!name), which is not read")
        if _LONG_NUMBER.match(getattr(event, "value", "")) and not event.style:
            raise ValueError(f"{what} has a number that is too long: put it in quotes")
        if depth > MAX_DEPTH:
            raise ValueError(f"{what} is nested deeper than {MAX_DEPTH} levels")
        if values > MAX_VALUES:
            raise ValueError(f"{what} has more than {MAX_VALUES} values")


def _check_value(value: Any, path: str) -> None:
    """Raise ValueError, with the path, for what is not JSON. The depth is bounded already."""
    if isinstance(value, dict):
        for key, member in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{path or '/'}: the key {key!r} must be text: put it in quotes")
            _check_value(key, path)
            _check_value(member, f"{path}/{one_line(key, 200)}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_value(item, f"{path}/{index}")
    elif isinstance(value, str):
        if _SURROGATE.search(value):
            raise ValueError(
                f"{path or '/'}: the text has half of a character (\\ud800 to \\udfff)"
            )
    elif isinstance(value, int | float) and not abs(value) <= _MAX_NUMBER:
        raise ValueError(f"{path}: the number is too large")
    elif not isinstance(value, bool | int | float | None):
        raise ValueError(f"{path}: a {type(value).__name__} is not read")


def _problem(error: Exception, first_line: int) -> str:
    mark = getattr(error, "problem_mark", None)
    text = one_line(str(getattr(error, "problem", None) or type(error).__name__), 200)
    if text.startswith("mapping values are not allowed"):
        text += "; put a value with ': ' into quotes"
    return text if mark is None else f"{text} (line {mark.line + first_line})"
