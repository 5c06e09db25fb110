"""Patterns of paths, in the language of `rg --glob` and of `.gitignore`.

`*` and `?` stand for characters of one name, `[a-z]` and `[!a-z]` for one of them, `{a,b}` for one
of several texts, and `**` as a whole name for any number of folders. A pattern without a `/`, but
for one at its end, is about a name at any depth; with one it begins at the root. It covers what is
below a folder that it matches.
"""

from __future__ import annotations

import re

__all__ = ["PathPattern"]


class PathPattern:
    """A pattern, compiled.

    Args:
        text: The pattern.

    Raises `ValueError` for what is no pattern, such as a bracket that is not closed.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        anchored = "/" in text.rstrip("/")
        body = text.strip("/")
        found = re.escape(body).replace(r"\*\*/", "(?:.*/)?").replace(r"/\*\*", "/.*")
        found = found.replace(r"\*\*", ".*").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        start = "" if anchored else "(?:.*/)?"
        self._match = re.compile(f"{start}{found}(?:/.*)?", re.DOTALL).fullmatch

    def covers(self, path: str) -> bool:
        """Whether it covers a path from the root, such as `src/app.py`; "." is the root."""
        return self._match(path) is not None
