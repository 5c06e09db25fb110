"""The parts that a line is read into."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Assignment", "Reading", "Redirection", "SimpleCommand", "UnreadableError", "Word"]


class UnreadableError(Exception):
    """The line cannot be read. Its text is the fault, as a sentence without its full stop."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command."""

    source: str
    """As it is written."""
    value: str | None
    """What the program gets, without quotes; None where it is known only when the line runs."""
    is_pattern: bool = False
    """Whether bash may replace it by names of files: it has an unquoted `*`, `?` or `[`."""
    prefix: str = ""
    """Where `value` is None: what it begins with, as far as that is known."""
    is_split: bool = False
    """Where `value` is None: whether it may become several words, or none."""
    suffix: str = ""
    """Where `value` is None: what it ends with, as far as that is known."""

    @property
    def known(self) -> str:
        """The value; where that is not known, what it begins with."""
        return self.prefix if self.value is None else self.value

    @property
    def shown(self) -> str:
        """As a message names it."""
        return f"`{self.source}`" if self.source else "a word that is added when it runs"


@dataclass(frozen=True, slots=True)
class Assignment:
    """`NAME=value` before a command, or alone."""

    name: str
    value: Word
    is_exported: bool = False
    """Whether it is set by `export`, so that every program gets it."""


@dataclass(frozen=True, slots=True)
class Redirection:
    """One redirection of a command."""

    operator: str
    """Such as `>`, `>>`, `<`, `&>`, `<<`, `<<<`, `>&`."""
    target: Word | None
    """The file; None for a number of a file descriptor, a here-document and a here-string."""
    text: Word | None = None
    """What a here-document or a here-string gives to the command."""
    descriptor: str = ""
    """The number before the operator; empty if there is none."""

    @property
    def writes(self) -> bool:
        """Whether it creates or changes its file."""
        return self.target is not None and ">" in self.operator

    @property
    def is_input(self) -> bool:
        """Whether the command reads its standard input from it."""
        return "<" in self.operator and self.descriptor in ("", "0")


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """One simple command."""

    words: tuple[Word, ...]
    """Its name and its arguments; empty for assignments or redirections alone."""
    assignments: tuple[Assignment, ...] = ()
    redirections: tuple[Redirection, ...] = ()
    source: str = ""
    """As it is written."""
    takes_more: bool = False
    """Whether further words follow that are known only when it runs, as those of xargs."""
    is_piped: bool = False
    """Whether it may read its input from a pipe, or from a redirection around it."""

    def value(self, at: int) -> str | None:
        """Return the value of a word; None where there is none, or it is not known."""
        return self.words[at].value if at < len(self.words) else None

    @property
    def base_name(self) -> str:
        """Its name without the folder; empty if it has none that is known."""
        return (self.value(0) or "").rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Reading:
    """What `read_line` has found."""

    commands: tuple[SimpleCommand, ...] = ()
    """Every simple command of the line in the order of the text, also those in substitutions,
    functions, loops and subshells."""
    faults: tuple[str, ...] = ()
    """Why parts of the line cannot be read, each as a sentence without its full stop."""
