"""Judges a command line before it runs: what an `Assessment` of `shell.run` says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from toolbus import Assessment, Rule
from toolbus.permissions.plain import MAX_PARTS, MAX_SUGGESTIONS
from toolbus.untrusted_text import one_line
from toolbus_toolkits.shell.commands import Effect
from toolbus_toolkits.shell.judging import (
    Verdict,
    changes_meaning,
    is_moved_by,
    judge_command,
)
from toolbus_toolkits.shell.matching import (
    MAX_DEPTH,
    LineCommand,
    all_commands,
    commands_inside,
    matching,
    reads_input,
)
from toolbus_toolkits.shell.path_resolver import PathResolver, Target, TooManyWords
from toolbus_toolkits.shell.reading import SimpleCommand, Word, read_line
from toolbus_toolkits.shell.rules import covers, exact_line, matches_any, suggestion
from toolbus_toolkits.workspace import Roots, SensitivePaths

__all__ = ["assess_line", "reads_lines"]

_MAX_INSIDE = 1_024
"""So many further commands the words of a line may be: each is compared with each pattern."""
_MAX_SHOWN = 4
"""How many commands a message tells about; the preview has more."""
_SOURCE_CHARS = 80
"""Of one command: a message has `_MAX_SHOWN` of them."""
_MAX_PREVIEW_LINES = 100
"""Each of at most 300 characters: a preview has room for 64 KiB, and nobody reads more."""
_REPEATS = re.compile(r"\b(?:for|while|until|select|function|coproc)\b|\(\s*\)")
"""Words of a line that may run a command twice, or elsewhere than where it stands."""
_ENDS = re.compile(r"[;\n]|\|\||(?<![<>&])&(?![&>])")
"""What ends a list of commands that run only if all before them succeed."""


def assess_line(  # noqa: PLR0913 - what a line starts with, and what judges it
    line: str,
    *,
    directory: str,
    environment: Mapping[str, str],
    roots: Roots,
    sensitive: SensitivePaths,
    patterns: Sequence[str] = (),
    keeps_within: Callable[[], bool] | None = None,
) -> Assessment:
    """Return what a command line would do, without running it.

    Args:
        line: The line.
        directory: Where it starts.
        environment: The variables that it starts with.
        roots: The working directories.
        sensitive: Names of secrets and settings.
        patterns: Those of rules that are asked about.
        keeps_within: Asked only where it counts: whether a sandbox keeps all changes of the line
            within the working directories, but for secrets and settings. None if unconfined.
    """
    reading = read_line(line, environment)
    if reading.faults:
        return _unreadable("; ".join(reading.faults), patterns)
    resolver = PathResolver(
        directory, home=environment.get("HOME", ""), roots=roots, sensitive=sensitive
    )
    # What a rule allows holds in the working directories: a line that begins elsewhere has no rule.
    is_inside = all(resolver.is_inside(Target("", path)) for path in resolver.directories)
    whole = exact_line(line) if is_inside else ""
    commands = []
    for found in all_commands(reading.commands):
        if found is None:
            limit = f"more than {MAX_PARTS} commands, or {MAX_DEPTH} inside of each other"
            return _unreadable(f"it has {limit}", patterns)
        commands.append(found)
    try:
        verdicts = _verdicts(line, commands, resolver, environment)
        matches = _matches(commands, verdicts, patterns)
    except TooManyWords:
        return _unreadable("it has too many words", patterns)
    assessment = _combined(whole, verdicts, matches, patterns, environment)
    return assessment if keeps_within is None else _confined(assessment, verdicts, keeps_within)


def reads_lines(line: str, environment: Mapping[str, str]) -> bool:
    """Whether a line runs what it gets as input: `bash`, `sudo -i`, `docker exec -i c sh`."""
    commands = all_commands(read_line(line, environment).commands)
    return any(found is None or reads_input(found) for found in commands)


def _matches(
    commands: Sequence[LineCommand], verdicts: Sequence[Verdict], patterns: Sequence[str]
) -> dict[str, bool]:
    """Return the patterns that a command of a line may match, or a file that one writes.

    Each with whether it certainly does. Raises `TooManyWords` if the words of the line may be too
    many further commands.
    """
    found: dict[str, bool] = {}
    if not patterns:
        return found
    left = _MAX_INSIDE
    for command, verdict in zip(commands, verdicts, strict=True):
        inside = list(islice(commands_inside(command), left))
        left -= len(inside)
        if not left:
            raise TooManyWords
        written = [*map(_writing, verdict.written)]
        known = (command.command, *command.effect.same, *written)
        may_match = set(matching(patterns, command, inside))
        for pattern in patterns:
            if pattern in may_match or any(matches_any(pattern, other) for other in written):
                is_certain = found.get(pattern, False)
                found[pattern] = is_certain or any(
                    _certainly_matches(pattern, other) for other in known
                )
    return found


def _verdicts(
    line: str,
    commands: Sequence[LineCommand],
    resolver: PathResolver,
    environment: Mapping[str, str],
) -> list[Verdict]:
    """Judge the commands of a line, each in all directories where it may run."""
    # What `trap` is given runs at the end, wherever the line is then.
    has_trap = any(found.command.base_name == "trap" for found in commands)
    repeats = has_trap or _REPEATS.search(line) is not None
    if repeats:
        # A later `cd` may stand before an earlier command the next time.
        for _ in commands:
            before = resolver.directories
            for found in commands:
                _change_directory(found.command, found.effect, resolver, environment)
            if resolver.directories == before or None in resolver.directories:
                break
    leading = _leading_changes(line, commands)
    verdicts = []
    for number, found in enumerate(commands):
        command, effect = found.command, found.effect
        verdicts.append(judge_command(command, effect, resolver, environment))
        is_certain = number < leading and not repeats
        _change_directory(command, effect, resolver, environment, is_certain=is_certain)
    # A symlink that one command may put somewhere leads the others away.
    for placing in verdicts:
        for other in verdicts:
            if (repeats or other is not placing) and is_moved_by(placing, other):
                other.doubts.append("another command of the line may put a symlink in its place")
                other.is_outside = True
    return verdicts


def _unreadable(why: str, patterns: Sequence[str]) -> Assessment:
    """Return the assessment of an unreadable line, which may be anything that a rule forbids."""
    message = f"The command line cannot be read before it runs: {one_line(why, 400)}."
    return Assessment(
        "ask",
        immune=True,
        message=message,
        matches=tuple(patterns),
        parts=((),),
        uncertain=tuple(patterns),
    )


def _leading_changes(line: str, commands: Sequence[LineCommand]) -> int:
    """Return how many changes of directory a line begins with, each followed by `&&`.

    What follows runs only if they succeed, unless the list ends before the line does. That is
    looked for in the text: a quoted `;` costs no more than a question.
    """
    count = 0
    rest = line.strip()
    for found in commands:
        after = rest.removeprefix(found.command.source).lstrip()
        if found.command.base_name != "cd" or after == rest or not after.startswith("&&"):
            break
        rest = after[2:].lstrip()
        count += 1
    return count if _ENDS.search(rest.replace("&&", "")) is None else 0


def _change_directory(
    command: SimpleCommand,
    effect: Effect,
    resolver: PathResolver,
    environment: Mapping[str, str],
    *,
    is_certain: bool = False,
) -> None:
    name = command.base_name
    if name == "popd":  # back to one of those where it has been
        return
    if name not in ("cd", "pushd", "chdir"):
        # `env -C folder rm x`, `find folder -execdir rm x`: what it starts is elsewhere.
        if effect.runs and effect.directory is not None:
            resolver.enter(resolver.entered(effect.directory))
        return
    if "CDPATH" in environment or any(entry.name == "CDPATH" for entry in command.assignments):
        resolver.enter((None,))
        is_certain = False
    is_home = name == "cd" and len(command.words) == 1
    word = None if is_home else effect.directory or Word(name, None)
    resolver.enter(resolver.entered(word), is_certain=is_certain)


def _combined(
    whole: str,
    verdicts: Sequence[Verdict],
    matches: Mapping[str, bool],
    patterns: Sequence[str],
    environment: Mapping[str, str],
) -> Assessment:
    found = tuple(pattern for pattern in patterns if pattern in matches or pattern == whole)
    uncertain = tuple(pattern for pattern in found if pattern != whole and not matches[pattern])
    if all(verdict.is_read_only for verdict in verdicts):
        return Assessment("pass", read_only=True, matches=found, uncertain=uncertain)
    parts = []
    for verdict in verdicts:
        for command in _asked_about(verdict, environment):
            is_known_place = not verdict.is_elsewhere
            covering = (
                p for p in patterns if p == whole or (is_known_place and covers(p, command))
            )
            parts.append(tuple(covering))
    immune = any(verdict.immune for verdict in verdicts)
    return Assessment(
        "ask",
        within_workdir=not immune and not any(verdict.is_outside for verdict in verdicts),
        immune=immune,
        message=_message(verdicts),
        preview=_preview(verdicts),
        suggestions=() if immune else _suggestions(whole, verdicts, environment),
        matches=found,
        parts=tuple(dict.fromkeys(parts)) or ((),),
        uncertain=uncertain,
    )


def _confined(
    assessment: Assessment, verdicts: Sequence[Verdict], keeps_within: Callable[[], bool]
) -> Assessment:
    """Return what is different in a sandbox: what a program does that is not known."""
    if assessment.read_only:
        return assessment
    # What a line names outside is asked about: it would fail there, and nobody wants that.
    names_outside = any(verdict.writes_outside or verdict.is_elsewhere for verdict in verdicts)
    is_within = assessment.within_workdir
    if not (is_within or assessment.immune or names_outside) and keeps_within():
        text = f"{assessment.message} It is confined to the working directories, without network."
        return replace(assessment, within_workdir=True, message=text)
    text = "It is confined: what its sandbox refuses fails, also if it is approved."
    return replace(assessment, message=f"{assessment.message} {text}")


def _certainly_matches(pattern: str, command: SimpleCommand) -> bool:
    """Whether a pattern matches a command by what is known of it."""
    is_known = not command.takes_more and not any(
        word.value is None or word.is_pattern for word in command.words
    )
    return covers(pattern, command) or (is_known and matches_any(pattern, command))


def _asked_about(verdict: Verdict, environment: Mapping[str, str]) -> Iterator[SimpleCommand]:
    """Yield the commands of a verdict that a rule has to allow, each on its own.

    A rule for `echo` is none for the files that `echo x > file` writes.
    """
    if verdict.needs_rule:
        assignments = changes_meaning(verdict.command, environment)
        yield replace(verdict.command, assignments=assignments)
    for word in verdict.written:
        yield _writing(word)


def _writing(word: Word) -> SimpleCommand:
    return SimpleCommand((Word(">", ">"), word), source=f"> {word.source}")


def _suggestions(
    whole: str, verdicts: Sequence[Verdict], environment: Mapping[str, str]
) -> tuple[Rule, ...]:
    """Return rules that together allow a line: one for each command, or one for the whole line."""
    found: dict[str, None] = {}
    started: set[int] = set()
    for verdict in verdicts:
        effect = verdict.effect
        is_started = id(verdict.command) in started
        if is_started or not effect.is_transparent:
            started.update(map(id, effect.runs))
        # What deletes or changes files by its words is not allowed for all files at once, and for
        # `npx x` or `tmux new -s x` no rule allows the program `x` alone.
        by_words = effect.changes is not None or effect.deletes or effect.runs or verdict.doubts
        is_exact = bool(by_words) or is_started
        for command in _asked_about(verdict, environment):
            pattern = "" if verdict.is_elsewhere else suggestion(command, is_exact=is_exact)
            found[pattern] = None
    patterns = list(found)
    if "" in patterns or len(patterns) > MAX_SUGGESTIONS:
        # Some of the rules would not be enough: the line would be asked about again.
        patterns = [whole] if whole else patterns[:MAX_SUGGESTIONS]
    return tuple(Rule(behavior="allow", match=pattern) for pattern in patterns if pattern)


def _reasons(verdict: Verdict) -> list[str]:
    effect = verdict.effect
    found = [*verdict.immune, *verdict.doubts]
    if not effect.read_only and not (effect.is_transparent and not effect.why):
        found.append(effect.why or "it is not known to only read")
    found += (f"it writes `{word.source}`" for word in verdict.written)
    if verdict.is_outside and not verdict.immune and (effect.changes or verdict.written):
        found.append("that is not for sure within a working directory")
    return list(dict.fromkeys(found))


def _message(verdicts: Sequence[Verdict]) -> str:
    """Return what a line would do, for a person.

    What cannot be allowed by a rule comes first, then what deletes: the rest of a long line is
    only counted.
    """
    asked = [verdict for verdict in verdicts if not verdict.is_read_only and _reasons(verdict)]
    asked.sort(key=lambda verdict: (not verdict.immune, not verdict.effect.deletes))
    clauses = [
        f"`{_shown(verdict.command)}`: {'; '.join(_reasons(verdict)[:_MAX_SHOWN])}"
        for verdict in asked[:_MAX_SHOWN]
    ]
    if len(asked) > _MAX_SHOWN:
        clauses.append(f"and {len(asked) - _MAX_SHOWN} more commands")
    return one_line("; ".join(clauses), 1_500) + "."


def _preview(verdicts: Sequence[Verdict]) -> str:
    """Return a line for each command, where a message cannot have all of them."""
    if len(verdicts) < 2:
        return ""
    lines = []
    for verdict in verdicts[:_MAX_PREVIEW_LINES]:
        reasons = "only reads" if verdict.is_read_only else "; ".join(_reasons(verdict))
        lines.append(one_line(f"{_shown(verdict.command)}: {reasons}", 300))
    if len(verdicts) > _MAX_PREVIEW_LINES:
        lines.append(f"and {len(verdicts) - _MAX_PREVIEW_LINES} more commands")
    return "\n".join(lines)


def _shown(command: SimpleCommand) -> str:
    text = command.source.strip()
    if not text:
        assigned = [f"{entry.name}={entry.value.known}" for entry in command.assignments]
        text = " ".join((*assigned, *(word.source for word in command.words)))
    return one_line(text, _SOURCE_CHARS)
