"""Reads a command line as bash does, without running it: which simple commands it has.

The words are those of the manual of bash: a line is made of simple commands, joined to pipelines
and lists, or inside compound commands; a simple command has assignments, words and redirections.

Two readers read each line. `tree-sitter-bash` finds the structure: where statements, compound
commands and substitutions begin and end. `words` reads the text between: words, redirections,
blanks and comments, by the rules of the manual. The reader in `lines` goes through both at once,
and where they do not meet at the same character, the line has a fault. So every character of a
line is read by the rules of bash, and what is not described is not read at all.
"""

from __future__ import annotations

from toolbus_toolkits.shell.reading.lines import MAX_LINE_LENGTH, read_line
from toolbus_toolkits.shell.reading.parts import (
    Assignment,
    Reading,
    Redirection,
    SimpleCommand,
    Word,
)

__all__ = [
    "MAX_LINE_LENGTH",
    "Assignment",
    "Reading",
    "Redirection",
    "SimpleCommand",
    "Word",
    "read_line",
]
