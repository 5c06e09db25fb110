"""Reads one word of a command line, with its quotes and expansions, as the manual of bash says."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from toolbus_toolkits.shell.reading.evaluating import is_special_name
from toolbus_toolkits.shell.reading.parts import UnreadableError, Word

__all__ = ["WordReader", "decode_ansi_c", "expand_braces"]

# `{a,b}` ten times over is a thousand words, of each of which the resolver asks what it names.
MAX_WORDS = 64
MAX_BRACES = 16

_RANGE = re.compile(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})")


def expand_braces(text: str) -> list[str]:
    """Return the words that bash makes of a word without quotes and expansions.

    It drops an empty one later. Raises `UnreadableError` if they do not close, or make too many.
    """
    if text.count("{") > MAX_BRACES:
        raise UnreadableError(f"a word has more than {MAX_BRACES} braces")
    start = text.find("{")
    if start < 0:
        if "}" in text:
            raise UnreadableError("a brace is not opened")
        return [text]
    end, commas = _find_end(text, start)
    inner = text[start + 1 : end]
    if commas:
        bounds = [start, *commas, end]
        items = [text[bounds[i] + 1 : bounds[i + 1]] for i in range(len(bounds) - 1)]
        heads = [word for item in items for word in expand_braces(item)]
    elif ".." in inner:
        heads = _expand_range(inner)
    else:
        heads = ["{" + word + "}" for word in expand_braces(inner)]
    tails = expand_braces(text[end + 1 :])
    if len(heads) * len(tails) > MAX_WORDS:
        raise UnreadableError(f"braces make more than {MAX_WORDS} words")
    return [text[:start] + head + tail for head in heads for tail in tails]


def _find_end(text: str, start: int) -> tuple[int, list[int]]:
    """Return where the brace closes, and where its own commas are."""
    depth = 0
    commas: list[int] = []
    for index in range(start, len(text)):
        mark = text[index]
        if mark == "{":
            depth += 1
        elif mark == "}":
            depth -= 1
            if depth == 0:
                return index, commas
        elif mark == "," and depth == 1:
            commas.append(index)
    raise UnreadableError("a brace is not closed")


def _expand_range(text: str) -> list[str]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UnreadableError(f"the braces of `{text[:40]}` are not read")
    first, last = int(match[1]), int(match[2])
    if abs(last - first) >= MAX_WORDS:
        raise UnreadableError(f"braces make more than {MAX_WORDS} words")
    has_zeros = any(re.match(r"-?0[0-9]", side) for side in match.groups())
    width = max(len(side) for side in match.groups()) if has_zeros else 0
    step = 1 if first <= last else -1
    return [f"{number:0{width}d}" for number in range(first, last + step, step)]


_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|(.))", re.DOTALL
)
_NAMED = {
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "?": "?",
}


def _decode_escape(match: re.Match[str]) -> str:
    octal, hexadecimal, short, long, named = match.groups()
    if named is not None:
        if named in _NAMED:
            return _NAMED[named]
        if named in "cuUx":
            raise UnreadableError(f"`\\{named}` in `$'...'` is not read")
        return "\\" + str(named)
    code = int(octal, 8) & 0xFF if octal else int(hexadecimal or short or long, 16)
    # A NUL ends the text there, single bytes above ASCII may be part of a letter, and what letters
    # above ASCII become depends on the locale.
    if not 0 < code < 0x80:
        raise UnreadableError("a character of `$'...'` is not read")
    return chr(code)


def decode_ansi_c(text: str) -> str:
    """Return what bash makes of the text between `$'` and `'`. Raises `UnreadableError`."""
    return _ESCAPE.sub(_decode_escape, text)


# A word of these characters alone means itself. What follows must end it.
_PLAIN_WORD = re.compile(
    r"[A-Za-z0-9_./:,@%+-][A-Za-z0-9_./:,@%+=^-]*(?=[ \t\n|&;)]|[<>](?!\()|\Z)"
)
_UNQUOTED = re.compile(r"[^ \t\n|&;<>()'\"\\$`]+")
_DOUBLE_QUOTED = re.compile(r'[^"\\$`]+')
_BACKTICKS = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
_ANSI_C = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_SPECIAL = re.compile(r"\$(?:([0-9@*!-])|\{([0-9]+|[@*!-])\})")
# What stands after the operator is expanded, or is a pattern: here it may only be plain text, so
# that nothing in it runs. `@`, `!` and subscripts evaluate values; `:=` and `=` assign.
_PLAIN_OPERATION = re.compile(
    r"\$\{(?:[A-Za-z_][A-Za-z0-9_]*:[0-9]+(?::[0-9]+)?"
    r"|(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+)(?::?[-+?]|%%?|##?|//?|\^\^?|,,?)[A-Za-z0-9_./,+*=%:-]*)\}"
)
# Without names there is nothing to evaluate. Parentheses are left out, as then the end is certain.
_NUMBER = re.compile(r"\$(?:[?#$]|\{[?#$]\}|\{#[A-Za-z_][A-Za-z0-9_]*\}|\(\([0-9+*/% \t<>=-]*\)\))")
# Braces are expanded before quotes and variables are looked at: here in words without them.
_BRACED_WORD = re.compile(
    r"[A-Za-z0-9_./,:@%+=*?~-]*\{[A-Za-z0-9_./,:@%+=*?~{}-]*(?=[ \t\n|&;)]|[<>](?!\()|\Z)"
)
_BRACES = re.compile(r"\{.*(?:,|\.\.).*\}", re.DOTALL)
_PATTERN = re.compile(r"[*?]|\[.*\]", re.DOTALL)
_TILDE = re.compile(r"^~")
_ASSIGNED_TILDE = re.compile(r"(^|:)~")
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")

# bash takes these as letters in every place. Emoji and words of some languages need them.
_JOINERS = re.compile("[\u00ad\u200c\u200d\U000e0020-\U000e007f]")
# bash gives them a value of its own, whatever it starts with.
_SET_BY_BASH = frozenset(["_", "SHLVL", "OLDPWD", "IFS", "SHELL"])

_UNKNOWN = "\0"
"""The text of a piece that is known only when the line runs; no line and no variable has a NUL."""
_Piece = tuple[str, bool]
"""A piece of a word: its text, and whether it is quoted."""


class WordReader:
    """Reads the words of one text.

    Args:
        text: The text.
        environment: The variables that are known.
        read_commands: Reads the commands of the substitution that begins at an index, and returns
            the index after it.
        read_backticks: Reads the commands of a text.
    """

    def __init__(
        self,
        text: str,
        environment: Mapping[str, str],
        *,
        read_commands: Callable[[int], int],
        read_backticks: Callable[[str], None],
    ) -> None:
        self.used_names: set[str] = set()
        self._text = text
        self._environment = environment
        self._read_commands = read_commands
        self._read_backticks = read_backticks
        self._pieces: list[_Piece] = []
        self._is_split = False
        # By the character that they begin with.
        self._unquoted_readers: dict[str, Callable[[int], int]] = {
            "'": self._read_single_quoted,
            '"': self._read_double_quoted,
            "\\": self._read_backslash,
            "`": partial(self._read_backtick, is_quoted=False),
            "$": partial(self._read_dollar, is_quoted=False),
        }

    def read_all(self, start: int) -> tuple[list[Word], int]:
        """Read the word at an index, which braces may make several of. Raises `UnreadableError`."""
        match = _BRACED_WORD.match(self._text, start)
        if match is None or not _BRACES.search(match[0]):
            word, end = self.read(start)
            return [word], end
        words = []
        for text in filter(None, expand_braces(match[0])):
            reader = WordReader(
                text,
                self._environment,
                read_commands=self._read_commands,
                read_backticks=self._read_backticks,
            )
            word, _ = reader.read(0)
            self.used_names |= reader.used_names
            words.append(replace(word, source=match[0]))
        return words, match.end()

    def read(self, start: int, *, is_assigned: bool = False) -> tuple[Word, int]:
        """Read the word at an index, and return it with the index after it.

        The value of an assignment is not split, is no pattern, has no braces that expand, and may
        be empty. Raises `UnreadableError`.
        """
        plain = _PLAIN_WORD.match(self._text, start)
        if plain is not None:
            return Word(plain[0], plain[0]), plain.end()
        # Substitutions read words of their own with this reader.
        outer = (self._pieces, self._is_split)
        self._pieces = []
        self._is_split = False
        end = self._read_unquoted(start)
        source = self._text[start:end]
        if not source and not is_assigned:
            raise UnreadableError("a word is missing")
        word = self._finish(source, is_assigned=is_assigned)
        self._pieces, self._is_split = outer
        return word, end

    def _read_unquoted(self, index: int) -> int:
        text = self._text
        while index < len(text):
            match = _UNQUOTED.match(text, index)
            if match is not None:
                _check_visible(match[0])
                self._pieces.append((match[0], False))
                index = match.end()
                continue
            mark = text[index]
            if mark in "<>" and text.startswith("(", index + 1):
                index = self._read_commands(index)
                self._pieces.append((_UNKNOWN, True))
                continue
            read = self._unquoted_readers.get(mark)
            if read is None:
                break
            index = read(index)
        return index

    def _read_single_quoted(self, index: int) -> int:
        end = self._text.find("'", index + 1)
        if end < 0:
            raise UnreadableError("a quote is not closed")
        self._pieces.append((self._text[index + 1 : end], True))
        return end + 1

    def read_here_document(self) -> Word:
        """Read all of the text as the body of a here-document: quotes are letters there."""
        index = 0
        while index < len(self._text):
            index = self._read_expanded(index, escapes="$`\\")
        return self._finish(self._text, is_assigned=True)

    def _read_double_quoted(self, index: int) -> int:
        index += 1
        self._pieces.append(("", True))
        while index < len(self._text):
            if self._text[index] == '"':
                return index + 1
            index = self._read_expanded(index, escapes='$`"\\')
        raise UnreadableError("a quote is not closed")

    def _read_expanded(self, index: int, *, escapes: str) -> int:
        """Read a piece of a quoted text in which bash expands `$`, backticks and `escapes`."""
        text = self._text
        match = _DOUBLE_QUOTED.match(text, index)
        if match is not None:
            self._pieces.append((match[0], True))
            return match.end()
        mark = text[index]
        if mark == '"':
            self._pieces.append((mark, True))
            return index + 1
        if mark == "\\":
            escaped = text[index + 1 : index + 2]
            if escaped != "\n":
                piece = escaped if escaped and escaped in escapes else "\\" + escaped
                self._pieces.append((piece, True))
            return index + 2
        if mark == "`":
            return self._read_backtick(index, is_quoted=True)
        return self._read_dollar(index, is_quoted=True)

    def _read_backslash(self, index: int) -> int:
        escaped = self._text[index + 1 : index + 2]
        if not escaped:
            raise UnreadableError("it ends with a backslash")
        if escaped == "\n":
            # bash joins the lines before it looks for words: only before a blank it is certain
            # that this ends the word.
            if self._text[index + 2 : index + 3] not in {" ", "\t"}:
                raise UnreadableError("a word goes on in the next line")
        else:
            _check_visible(escaped)
            self._pieces.append((escaped, True))
        return index + 2

    def _read_backtick(self, index: int, *, is_quoted: bool) -> int:
        match = _BACKTICKS.match(self._text, index)
        if match is None:
            raise UnreadableError("a backtick is not closed")
        if "\\" in match[1]:
            # The manual says which backslashes go, but not in double quotes inside and outside.
            raise UnreadableError("it has a backslash in backticks")
        self._read_backticks(match[1])
        self._add_unknown(is_quoted=is_quoted)
        return match.end()

    def _read_dollar(self, index: int, *, is_quoted: bool) -> int:
        text = self._text
        match = _VARIABLE.match(text, index)
        if match is not None:
            self._add_variable(match[1] or match[2], is_quoted=is_quoted)
            return match.end()
        following = text[index + 1 : index + 2]
        if following == "(" and not text.startswith("((", index + 1):
            end = self._read_commands(index)
            self._add_unknown(is_quoted=is_quoted)
            return end
        if following == "'" and not is_quoted:
            match = _ANSI_C.match(text, index)
            if match is None:
                raise UnreadableError("a quote is not closed")
            self._pieces.append((decode_ansi_c(match[1]), True))
            return match.end()
        match = _NUMBER.match(text, index)
        if match is not None:
            # Digits are not split, unless the line says so: then no variable is known.
            self.used_names.add("IFS")
            self._add_unknown(is_quoted=is_quoted or bool(self._environment))
            return match.end()
        match = _SPECIAL.match(text, index) or _PLAIN_OPERATION.match(text, index)
        if match is not None:
            # "$@" is several words, or none, even in quotes.
            self._add_unknown(is_quoted=is_quoted and "@" not in match[0])
            return match.end()
        if following and following in '{([$"' and not (is_quoted and following == '"'):
            shown = text[index : index + 12]
            raise UnreadableError(f"`{shown}` is not read: it may evaluate what it holds")
        self._pieces.append(("$", True))
        return index + 1

    def _add_unknown(self, *, is_quoted: bool) -> None:
        self._pieces.append((_UNKNOWN, is_quoted))
        self._is_split = self._is_split or not is_quoted

    def _add_variable(self, name: str, *, is_quoted: bool) -> None:
        value = self._environment.get(name)
        if value is None or name in _SET_BY_BASH or is_special_name(name):
            self._add_unknown(is_quoted=is_quoted)
            return
        self.used_names.add(name)
        if is_quoted or (value and not any(mark in value for mark in " \t\n*?[\\")):
            # Neither braces nor a tilde of a value are expanded.
            self._pieces.append((value, True))
        else:
            self._add_unknown(is_quoted=False)

    def _finish(self, source: str, *, is_assigned: bool) -> Word:
        unquoted = "".join(_UNKNOWN if is_quoted else text for text, is_quoted in self._pieces)
        if "{" in unquoted and not is_assigned and _BRACES.search(unquoted):
            raise UnreadableError(f"the braces of `{source[:40]}` are not read")
        if "~" in unquoted:
            self._expand_tildes(source, is_assigned=is_assigned)
        is_pattern = not is_assigned and _PATTERN.search(unquoted) is not None
        value = "".join(text for text, _ in self._pieces)
        if _UNKNOWN not in value:
            return Word(source, value, is_pattern=is_pattern)
        return Word(
            source,
            None,
            is_pattern=is_pattern,
            prefix=value.partition(_UNKNOWN)[0],
            is_split=self._is_split and not is_assigned,
            suffix=value.rpartition(_UNKNOWN)[2],
        )

    def _expand_tildes(self, source: str, *, is_assigned: bool) -> None:
        """Replace the tildes that begin a path by the home directory."""
        # Also a word after the name of the command is expanded behind `NAME=` and its colons.
        looks_assigned = _ASSIGNED.match(source)
        begins_at = _ASSIGNED_TILDE if is_assigned else _TILDE
        for number, (text, is_quoted) in enumerate(self._pieces):
            if is_quoted or "~" not in text:
                continue
            is_last = number == len(self._pieces) - 1
            if number == 0 and text[0] == "~" and ((text == "~" and is_last) or text[1:2] == "/"):
                if "~" not in text[1:]:
                    self.used_names.add("HOME")
                    # No letter of the home directory is a pattern.
                    home = self._environment.get("HOME", _UNKNOWN)
                    self._pieces[:1] = [(home, True), (text[1:], False)]
                    return
            is_first = number == 0 or is_assigned
            if looks_assigned or (is_first and begins_at.search(text)):
                self._pieces[number] = (_UNKNOWN, True)


def _check_visible(text: str) -> None:
    """Raise `UnreadableError` for blanks other than the space, and letters without a width.

    In quotes they are letters of a text. Outside of them a person takes `rm\u00a0x` for two words.
    """
    if text.isascii():
        return
    hidden = (unicodedata.category(letter) for letter in _JOINERS.sub("", text))
    if any(category in ("Zs", "Cf") for category in hidden):
        raise UnreadableError("it has an invisible character outside of quotes")
