r"""Patterns of paths, in the language of `rg --glob` and of `.gitignore`.

| in a pattern | stands for |
|---|---|
| `*`, `?` | any characters of one name; one of them |
| `[a-z]`, `[!a-z]` | one character that is, or is not, in the set; never `/` |
| `{a,b}` | one of these texts, which may have patterns of their own |
| `**` as a whole name | any number of folders; at the end all that is below |
| `\*` | the character itself |

A pattern without a `/`, but for one at its end, is about a name at any depth; with one it begins at
the root. With a `/` at its end it is about folders. It covers what is below a folder that it
matches. Upper and lower case differ. Spaces at the end count nothing.

It differs from `rg` where that has only bytes: `?` and a set stand for a whole character.

`pathspec` and `wcmatch` are not used: a pattern comes from the caller, and with eight `**` they
compare one path for over 10 s. `pathspec` has no braces either.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from toolbus_toolkits.workspace.roots import (
    PATH_MAX,
    Roots,
    UnresolvedPath,
    is_same_or_below,
    resolve,
)

__all__ = ["PathPattern", "RootedPattern", "escaped", "with_plain_brackets"]

_Token: TypeAlias = "str | list[list[_Token]]"
"""A character, or a regular expression of one character or of a `*`, or one of the names of `**`
below; or the texts in braces."""

_MAX_DEPTH = 16
"""Of braces inside of each other."""
_MAX_TEXTS = 256
"""How many texts braces may stand for together: each is compared with each path."""
_MAX_TOKENS = 16 * 1024
"""Of all these texts; the regular expression takes some 50 ms to compile."""
_ONE = "[^/]"
_STAR = "[^/]*"
_FOLDERS = "**"
"""Any number of folders, each with its `/`. It stands at the start, or after a `/`."""
_FOLDERS_FIRST = "**/"
_FOLDERS_BETWEEN = "/**/"
_ALL_BELOW = "/**"
_BACKSLASH = re.compile(r"\\(.)", re.DOTALL)
_PLAIN = re.compile(r"(?:\\.|[^*?\[\]{}\\])*", re.DOTALL).fullmatch
_NOTHING: list[list[_Token]] = [[]]
"""Braces without a text. They are a token nevertheless: what follows them begins nothing."""
_RANGE = re.compile("(.)(?:-(.))?", re.DOTALL)
_BRACKETS = re.compile(r"(\\.)|([\[\]])", re.DOTALL)
_SPECIAL = re.compile(r"[*?\[\]{}\\!#~]|\s(?=\s*\Z)")


def escaped(path: str) -> str:
    """Return a pattern for the characters of a path as they are."""
    return _SPECIAL.sub(r"\\\g<0>", path)


def with_plain_brackets(text: str) -> str:
    """Return a pattern in which `[` and `]` are characters, not sets."""
    return _BRACKETS.sub(lambda match: match[1] or f"\\{match[2]}", text)


class PathPattern:
    """A pattern, compiled.

    To compare it takes time that grows with the path alone, whatever the pattern.

    Raises `ValueError` for what is no pattern, such as a bracket that is not closed, and for one
    with a name `..`, with a `!` at its start, or with braces that stand for too many texts.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > PATH_MAX:
            raise ValueError(f"it has over {PATH_MAX:,} characters")
        if text.startswith("!"):
            raise ValueError("it begins with !, which excludes; \\! is the character")
        body = text if re.search(r"\\\s\Z", text) else text.rstrip()
        # `./src` is what people write for `/src`; for rg there is no such file.
        body = re.sub(r"\A\.(?=/)", "", body)
        self.is_absolute = body.startswith("/")
        """Whether it begins with `/`."""
        needs_folder = body.endswith("/")
        body = re.sub(r"\\?/\Z", "", body)
        is_anchored = "/" in body
        body = body.removeprefix("/")
        if not body or "\0" in body:
            raise ValueError("it is empty, or contains NUL")
        if not is_anchored and body != "**" and not body.startswith("**/"):
            body = f"**/{body}"
        if body == "**" or body.endswith("/**"):  # all that is below, without the folder itself
            body += "/*"
        texts = _expanded(_Parser(body).parsed())
        found = "|".join(map(_regex_of, texts))
        self._names = found
        self._match = re.compile(f"(?:{found})(?:/.*)?", re.DOTALL).fullmatch
        self._match_file = self._match
        if needs_folder:
            self._names = "(?!)"  # no file has such a name
            self._match_file = re.compile(f"(?:{found})/.*", re.DOTALL).fullmatch
        shared = []
        for tokens in zip(*texts, strict=False):
            if len(tokens[0]) > 1 or len(set(tokens)) > 1:
                break
            shared.append(tokens[0])
        if texts == [shared]:
            shared.append("/")
        self.start = "".join(shared)
        """How each path begins that it covers, as far as that is plain text; a `/` ends a name."""

    def covers(self, path: str, *, is_folder: bool = False) -> bool:
        """Whether it covers a path from the root, such as `src/app.py`; "." is the root."""
        match = self._match if is_folder else self._match_file
        return match("" if path == "." else path) is not None

    def file_matcher(self) -> Callable[[str], object]:
        """Return what is true of the files that `rg --glob` finds with it.

        Those are files that it is about themselves, not all that is below a folder.
        """
        return re.compile(self._names, re.DOTALL).fullmatch

    def covered(self, files: Iterable[str]) -> Iterator[str]:
        """Yield those of many files that it covers."""
        return filter(self._match_file, files)


class RootedPattern:
    """The pattern of a rule, over the files of several roots.

    A pattern is relative to a root. One that begins with the path of a root, or with `~/`, is about
    that path. So `/srv/**` is ambiguous with a root `/srv`: an allow rule is read in one way, the
    first root's path if that has several names; a deny rule in both. A path to a root through
    symlinks counts for a deny rule. What is no pattern covers nothing for an allow, and all for a
    deny.
    """

    def __init__(self, text: str, roots: Roots) -> None:
        self._roots = roots
        self._behind_links: PathPattern | None = None
        if text.startswith("~/"):
            text = escaped(os.path.realpath(os.path.expanduser("~"))) + text[1:]
        try:
            self._pattern: PathPattern | None = PathPattern(text)
            if real := _with_real_start(text, roots):
                self._behind_links = PathPattern(real)
        except ValueError:
            self._pattern = None
            return
        start = f"/{self._pattern.start}"
        first, *further = roots.folders
        named = [root for root in further if start.startswith(f"{root}/")]
        if start.startswith(f"{first}/") and first.count("/") > 1:
            named.append(first)
        self._is_absolute = self._pattern.is_absolute and bool(named)

    def covers(self, path: str, *, is_folder: bool = False) -> bool:
        """Whether it covers a real path for sure: for rules that allow it.

        What is relative is about the first root alone.
        """
        if self._pattern is None:
            return False
        if self._is_absolute:
            return self._pattern.covers(path[1:], is_folder=is_folder)
        relative = _from(self._roots.folders[0], path)
        return relative is not None and self._pattern.covers(relative, is_folder=is_folder)

    def may_cover(self, path: str, *, is_folder: bool = False) -> bool:
        """Whether it may be meant for a real path: for rules that deny it or ask about it."""
        if self._pattern is None:
            return True
        texts = [_from(root, path) for root in self._roots.folders]
        if self._pattern.is_absolute:
            texts.append(path[1:])
        if self._behind_links and self._behind_links.covers(path[1:], is_folder=is_folder):
            return True
        return any(
            self._pattern.covers(text, is_folder=is_folder) for text in texts if text is not None
        )

    def _starts(self) -> list[str]:
        """Return where it may begin, each with a `/` at its end."""
        starts = [f"{root.rstrip('/')}/" for root in self._roots.folders]
        if self._pattern is not None and self._pattern.is_absolute:
            starts.append("/")
        return starts

    def named_folders(self) -> list[str]:
        """Return the folders that its names before any wildcard lead to; they need not exist."""
        if self._pattern is None or "/" not in self._pattern.start:
            return []
        folder = os.path.dirname(self._pattern.start)
        return [os.path.join(start, folder) for start in self._starts()]

    def may_be_covered(self, files: Sequence[str]) -> Iterator[str]:
        """Yield those of many files that it may be meant for, by their real paths."""
        if self._pattern is None:
            yield from files
            return
        for start in self._starts():
            names = (path[len(start) :] for path in files if path.startswith(start))
            for name in self._pattern.covered(names):
                yield f"{start}{name}"
        if self._behind_links:
            for name in self._behind_links.covered(path[1:] for path in files):
                yield f"/{name}"


def _with_real_start(text: str, roots: Roots) -> str:
    """Return a pattern whose first names lead through symlinks, with their real path.

    Names below a root stay as they are. Empty for a pattern that leads through none.
    """
    if not text.startswith("/"):
        return ""
    found = ""
    names = text.rstrip().split("/")
    for count in range(2, len(names) + 1):
        start = "/".join(names[:count])
        if not _PLAIN(start):
            break
        path = _BACKSLASH.sub(r"\1", start)
        try:
            real = resolve(path, "/")
        except UnresolvedPath:
            break
        found = "/".join((escaped(real.rstrip("/")), *names[count:])) if real != path else ""
        if roots.contains(real):
            break
    return found


def _from(root: str, path: str) -> str | None:
    """Return a path from a root; None for one that is not in it."""
    if not is_same_or_below(path, root):
        return None
    return path[len(root.rstrip("/")) + 1 :] or "."


class _Parser:
    """Reads a pattern of whole paths as rg does. A branch has the tokens of one text in braces."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._branches: list[list[_Token]] = [[]]
        self._opened: list[int] = []

    def parsed(self) -> list[_Token]:
        """Return its tokens. Raises `ValueError`."""
        while self._at < len(self._text):
            character = self._text[self._at]
            self._at += 1
            if character == "*":
                self._star()
            elif character == "?":
                self._branches[-1].append(_ONE)
            elif character == "[":
                self._set()
            elif character == "\\":
                if self._at == len(self._text):
                    raise ValueError("nothing follows its last \\")
                self._branches[-1].append(self._text[self._at])
                self._at += 1
            elif character in "{}" or (character == "," and self._opened):
                self._brace(character)
            else:
                self._branches[-1].append(character)
        if self._opened:
            raise ValueError("a { is not closed")
        return self._branches[0]

    def _brace(self, character: str) -> None:
        if character == "}":
            if not self._opened:
                raise ValueError("a } has no {")
            start = self._opened.pop()
            branches = self._branches[start:]
            texts = [branch for branch in branches if any(token != _NOTHING for token in branch)]
            del self._branches[start:]
            self._branches[-1].append(texts or _NOTHING)
            return
        if character == "{":
            if len(self._opened) == _MAX_DEPTH:
                raise ValueError(f"over {_MAX_DEPTH} braces are inside of each other")
            self._opened.append(len(self._branches))
        self._branches.append([])

    def _star(self) -> None:
        text = self._text
        before = text[: self._at - 1][-1:]
        branch = self._branches[-1]
        if text[self._at : self._at + 1] != "*":
            branch.append(_STAR)
            return
        self._at += 1
        after = text[self._at : self._at + 1]
        if not branch and after in ("", "/"):
            branch.append(_FOLDERS_FIRST)
        elif branch and before == "/" and after in ("", "/"):
            self._put_folders(_FOLDERS_BETWEEN if after else _ALL_BELOW)
        elif branch and before == "/" and after in (",", "}") and self._opened:
            self._put_folders(_ALL_BELOW)
            return
        else:
            branch.append(_STAR)
            return
        self._at += 1

    def _put_folders(self, token: str) -> None:
        branch = self._branches[-1]
        if branch[-1] not in (_FOLDERS_FIRST, _ALL_BELOW):  # a `/`, and no `**/`
            branch[-1] = token

    def _set(self) -> None:
        text = self._text
        at = self._at
        negation = ""
        if text[at : at + 1] in ("!", "^"):
            negation = "^"
            at += 1
        end = text.find("]", at + 1)  # as the first character it stands for itself
        if end < 0:
            raise ValueError("a [ is not closed")
        found = ""
        for first, last in _RANGE.findall(text[at:end]):
            if last and last < first:
                raise ValueError(f"{first}-{last} is no range")
            found += f"{re.escape(first)}-{re.escape(last or first)}"
        self._branches[-1].append(f"(?!/)[{negation}{found}]")
        self._at = end + 1


def _expanded(tokens: list[_Token]) -> list[list[str]]:
    """Return the texts that a pattern stands for, without braces. Raises `ValueError`."""
    texts = _extended([[]], tokens)
    for text in texts:
        names = "".join(token if len(token) == 1 else "*" for token in text if token != _FOLDERS)
        if not {"", ".", ".."}.isdisjoint(names.split("/")):
            raise ValueError("a name of it is empty, `.` or `..`")
    return texts


def _extended(texts: list[list[str]], tokens: list[_Token]) -> list[list[str]]:
    for token in tokens:
        if isinstance(token, list):
            texts = [text for branch in token for text in _extended(texts, branch)]
        elif token == _FOLDERS_FIRST:
            # Behind other characters, as in `x{**/a,b}`, it may stand for nothing.
            further = []
            for text in texts:
                if text and text[-1] not in ("/", _FOLDERS):
                    further += [text, [*text, _STAR, "/", _FOLDERS]]
                else:
                    further.append([*text, _FOLDERS])
            texts = further
        else:
            added = {_FOLDERS_BETWEEN: ["/", _FOLDERS], _ALL_BELOW: ["/", _FOLDERS, _STAR]}
            texts = [[*text, *added.get(token, [token])] for text in texts]
        if len(texts) > _MAX_TEXTS or sum(map(len, texts)) > _MAX_TOKENS:
            raise ValueError(f"its braces stand for more than {_MAX_TEXTS} texts, or for long ones")
    return texts


def _regex_of(text: list[str]) -> str:
    """Return a regular expression that never looks twice for what it has found.

    What stands between two `*` of a name, or between two `**`, has a fixed length, in characters or
    in names. So the first place where it is found is as good as any later one.
    """
    groups: list[list[str]] = [[]]
    for token in text:
        if token == _FOLDERS:
            groups.append([])
        else:
            groups[-1].append(token)
    found = [_names_regex_of(groups[0])]
    found += (f"(?>(?:[^/]*/)*?{_names_regex_of(group)})" for group in groups[1:-1])
    if len(groups) > 1:
        found.append(f"(?:[^/]*/)*?{_names_regex_of(groups[-1])}")
    return "".join(found)


def _names_regex_of(tokens: list[str]) -> str:
    found = ""
    star = ""
    chunk = ""
    for token in tokens:
        if token == _STAR:
            if star and chunk:
                found += f"(?>[^/]*?{chunk})"
            elif not star:
                found += chunk
            star = _STAR
            chunk = ""
        elif token == "/":
            found += f"{star}{chunk}/"
            star = ""
            chunk = ""
        else:
            chunk += re.escape(token) if len(token) == 1 else token
    return f"{found}{star}{chunk}"
