"""The settings of git: which commands read them, and which changes a person decides about.

Source: git-config(1) of git 2.39; the forms `git config get` and `git config set` are of git 2.46.
"""

from __future__ import annotations

from dataclasses import replace

from toolbus_toolkits.shell.commands.effects import Effect
from toolbus_toolkits.shell.commands.git_repository import runs_gpg
from toolbus_toolkits.shell.commands.table import Arguments, Command, takes_words
from toolbus_toolkits.shell.reading import Word

__all__ = ["CONFIG_ROWS", "is_harmless_setting"]

# Of `git -c`: what changes how an output looks. Their values are words or numbers.
_HARMLESS_SETTINGS = frozenset(
    "core.abbrev core.quotepath core.precomposeunicode core.ignorecase diff.algorithm "
    "diff.colormoved diff.context diff.mnemonicprefix diff.noprefix diff.renamelimit diff.renames "
    "diff.wserrorhighlight grep.linenumber grep.patterntype log.abbrevcommit log.date log.decorate "
    "log.follow status.branch status.relativepaths status.short status.showuntrackedfiles "
    "advice.detachedhead advice.statushints column.ui".split()
)


def is_harmless_setting(word: Word) -> bool:
    """Whether `git -c WORD` changes at most how an output looks."""
    if word.value is None:
        return False
    name, _, value = word.value.partition("=")
    name = name.lower()
    is_listed = name in _HARMLESS_SETTINGS or name.startswith("color.")
    return is_listed and not runs_gpg(value)


_READS_CONFIG = "--get --get-all --get-regexp --get-urlmatch -l --list"
# A change of these in a repository is an ordinary question. Any other may make later commands run
# a program, so that a person decides.
_ORDINARY_SECTIONS = frozenset(
    "advice author branch color column committer push status user".split()
)
_ORDINARY_KEYS = frozenset(
    "commit.gpgsign commit.verbose core.abbrev core.autocrlf core.eol core.filemode "
    "core.ignorecase core.longpaths core.quotepath core.safecrlf core.symlinks core.whitespace "
    "diff.algorithm diff.colormoved diff.mnemonicprefix diff.noprefix diff.renames "
    "fetch.prune fetch.prunetags init.defaultbranch log.date log.decorate merge.conflictstyle "
    "merge.ff pull.ff pull.rebase rebase.autosquash rebase.autostash rerere.enabled "
    "tag.gpgsign".split()
)


def _is_ordinary(word: Word) -> bool:
    if word.value is None or word.is_pattern:
        return False
    name = word.value.lower()
    return name.partition(".")[0] in _ORDINARY_SECTIONS or name in _ORDINARY_KEYS


def _config(arguments: Arguments) -> Effect:
    operands = arguments.operands
    # One key is read; a single word without a dot is a sub-command of later versions.
    is_key = len(operands) == 1 and "." in (operands[0].value or "")
    is_reading = arguments.has(_READS_CONFIG) or (is_key and not operands[0].is_pattern)
    if is_reading and not arguments.fault:
        return Effect(read_only=True, reads=arguments.paths())
    return _changes_config(arguments)


def _changes_config(arguments: Arguments) -> Effect:
    operands = arguments.operands
    name = operands[0].value if operands else None
    if name in ("set", "unset"):
        operands = operands[1:]
    unknown = any(option not in arguments.row.kinds for option, _ in arguments.options)
    scope = "--global --system --worktree -f --file --blob --edit -e --remove-section"
    if unknown or arguments.has(f"{scope} --rename-section"):
        return Effect(
            why="it changes settings of git", immune="`git config` changes settings of the user"
        )
    if operands and _is_ordinary(operands[0]):
        return Effect(why="it changes a setting of the repository")
    return Effect(
        why="it changes a setting of the repository",
        immune="`git config` changes a setting that may make later commands run programs",
    )


_CONFIG_OPTIONS = (
    "--global --system --local --worktree --bool --int --bool-or-int --bool-or-str --path"
    " --expiry-date -z --null --name-only --includes --no-includes --show-origin --show-scope"
    " --show-names --fixed-value --all --regexp"
)

_CONFIG = takes_words(
    "git config",
    f"{_READS_CONFIG} {_CONFIG_OPTIONS}",
    valued="--type --default",
    files="-f --file",
    asks={
        "--add --replace-all --unset --unset-all --append": "changes a setting",
        "-e --edit --remove-section --rename-section": "changes settings",
    },
    effect=_config,
)

CONFIG_ROWS: tuple[Command, ...] = (
    _CONFIG,
    replace(
        _CONFIG,
        name="git config get",
        flags=_CONFIG_OPTIONS,
        valued="--type --default --value --url",
        asks={},
        effect=None,
    ),
    replace(_CONFIG, name="git config list", flags=_CONFIG_OPTIONS, asks={}, effect=None),
    replace(_CONFIG, name="git config set, git config unset", effect=_changes_config),
)
