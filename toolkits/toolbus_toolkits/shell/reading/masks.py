"""Makes the words of a line plain, so that its structure alone is left to the grammar."""

from __future__ import annotations

import re

__all__ = ["with_plain_words"]

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
        if found[0] == "'":
            # Here a backslash is a letter.
            single = _SINGLE_QUOTED.match(text, match.start())
            found = single[0] if single else found
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
