"""Finds here-documents and makes words plain, so that only the structure is left to the grammar."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["HereDocument", "find_here_documents", "with_plain_words", "without_here_documents"]

# A delimiter of letters that need no quotes, all of it quoted or none: bash has more.
_OPERATOR = re.compile(
    r"(?<!<)<<(-?)[ \t]*(?:'([\w.:+-]+)'|\"([\w.:+-]+)\"|\\([\w.:+-]+)|([\w.:+-]+))"
    r"(?=[ \t\n|&;<>)]|\Z)",
    re.ASCII,
)

MAX_HERE_DOCUMENTS = 32  # each is searched for its end in the whole line
_ARROWS = re.compile(r"(?<!<)<<(?!<)")


@dataclass(frozen=True, slots=True)
class HereDocument:
    """One here-document."""

    start: int
    """Where its operator begins."""
    end: int
    """After its delimiter word."""
    body_start: int
    """After the newline that ends the line of the operator."""
    body_end: int
    """After the line of the closing delimiter."""
    body: str
    is_quoted: bool
    """Whether nothing in the body is expanded."""


def find_here_documents(text: str) -> dict[int, HereDocument]:
    """Return what looks like a here-document, by the index of its operator.

    It may stand in a quote or a comment: the reader of the line finds out.
    """
    found: dict[int, HereDocument] = {}
    body_end = 0
    line_end = 0
    for match in _OPERATOR.finditer(text):
        if len(found) == MAX_HERE_DOCUMENTS:
            # The next one is not found, so the reader of the line stops there.
            break
        if match.start() < body_end and match.start() > line_end:
            # It is a line of the body of the one before.
            continue
        if match.start() > line_end:
            line_end = text.find("\n", match.end())
            if line_end < 0:
                break
            body_end = line_end + 1
        dash, *delimiters = match.groups()
        delimiter = next(word for word in delimiters if word)
        indent = r"\t*" if dash else ""
        closing = re.compile(rf"^{indent}{re.escape(delimiter)}(?:\n|\Z)", re.M)
        close = closing.search(text, body_end)
        if close is None:
            continue
        body = text[body_end : close.start()]
        if re.search(rf"^{indent}{re.escape(delimiter)}", body, re.M):
            # In a substitution bash takes this line as the end if it has a parenthesis.
            continue
        found[match.start()] = HereDocument(
            match.start(),
            match.end(),
            body_end,
            close.end(),
            re.sub(r"^\t+", "", body, flags=re.M) if dash else body,
            is_quoted=delimiters[3] is None,
        )
        body_end = close.end()
    return found


def without_here_documents(text: str, found: dict[int, HereDocument]) -> str:
    """Return a text of the same length where here-documents are blanks, and no operator is left."""
    pieces: list[str] = []
    index = 0
    blanks = [(document.start, document.end) for document in found.values()]
    blanks += [(document.body_start, document.body_end) for document in found.values()]
    for start, end in sorted(blanks):
        pieces += [text[index:start], " " * (end - start)]
        index = end
    # What is left stands in quotes, or is none: the scanner of the grammar must not look for it.
    return _ARROWS.sub("xx", "".join([*pieces, text[index:]]))


_UNQUOTED = re.compile(
    r"""(?P<blank>\\\n|(?<![^\s;&|()])\#[^\n]*)"""
    r"""|(?P<plain>\\.|\$?'(?:[^'\\]|\\.)*'|[%@^,+~:?*]|(?<=[\w"'.}$])[=\#!])"""
    r"""|(?P<other><>|<<<|[<>]&-|["()]|\$\()""",
    re.DOTALL,
)
# Those that the grammar does not know everywhere.
_REDIRECTIONS = {"<>": "< ", "<<<": "<  ", "<&-": "<&1", ">&-": ">&1"}
_SINGLE_QUOTED = re.compile(r"'[^']*'")
_DOUBLE_QUOTED = re.compile(r"""(?P<blank>\\\n)|(?P<plain>\\.)|(?P<other>"|\$\()""", re.DOTALL)


def with_plain_words(text: str) -> str:
    """Return a text of the same length with letters in place of quotes, escapes and signs.

    It need not be right: what the grammar makes of it is compared with the text itself.
    """
    pieces: list[str] = []
    # Of each substitution that is open: whether it is inside double quotes.
    quoted = [False]
    index = 0
    while True:
        match = (_DOUBLE_QUOTED if quoted[-1] else _UNQUOTED).search(text, index)
        if match is None:
            return "".join([*pieces, text[index:]])
        pieces.append(text[index : match.start()])
        found = match[0]
        if single := _SINGLE_QUOTED.match(text, match.start()):
            found = single[0]  # a backslash is a letter here
        index = match.start() + len(found)
        if match["blank"]:
            pieces.append(" " * len(found))
        elif match["plain"]:
            pieces.append("x" * len(found))
        elif found in _REDIRECTIONS:
            pieces.append(_REDIRECTIONS[found])
        else:
            pieces.append(found)
            if found == '"':
                quoted[-1] = not quoted[-1]
            elif found != ")":
                quoted.append(False)
            elif len(quoted) > 1:
                quoted.pop()
