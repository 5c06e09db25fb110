"""What one simple command does, as far as it is known."""

from __future__ import annotations

from dataclasses import dataclass

from toolbus_toolkits.shell.reading import SimpleCommand, Word

__all__ = ["Effect"]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a command does with its words. Assignments and redirections are judged apart."""

    read_only: bool = False
    """Whether it changes no file, no process and no system elsewhere, and starts no program but
    those of `runs`."""
    why: str = ""
    """Why it is not read-only, as a clause for a person: "`-o` writes a file"."""
    immune: str = ""
    """Why a person decides whatever the rules allow, as a clause; empty if no one has to."""
    reads: tuple[Word, ...] | None = None
    """The files and folders that it reads, as far as they are among its words; None where that is
    not known: then every word counts as one."""
    is_recursive: bool = False
    """Whether it reads the contents of all files below the folders of `reads`."""
    changes: tuple[Word, ...] | None = None
    """The files and folders that it creates, changes or deletes, if it does nothing else and all of
    them are among its words: then `accept_edits` may allow it. None otherwise."""
    deletes: tuple[Word, ...] = ()
    """The files and folders that it deletes, if any; also where `changes` is None."""
    runs: tuple[SimpleCommand, ...] = ()
    """The commands that it starts with its own words, as `env` and `xargs` do. Each is judged as a
    command of the line."""
    same: tuple[SimpleCommand, ...] = ()
    """Commands that rules about denials see beside it: the same one by the name that rules know it
    by, as `npm install` for `npm i`, and those that it runs on another machine, as `ssh` does."""
    reads_lines: bool = False
    """Whether it runs each line that it reads as a command line: a shell without a script."""
    runs_words: bool = False
    """Whether it may run what other words of it name, as a program or a text, here or elsewhere:
    what denies such a command denies this one."""
    is_transparent: bool = False
    """Whether it does nothing but start `runs`, as `time` does: no rule has to cover it itself."""
    directory: Word | None = None
    """The directory that it changes to (`cd`), or that its words are relative to (`git -C`)."""
