"""Judges a command line before it runs: what an `Assessment` of `shell.run` says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from toolbus import Assessment, Rule
from toolbus.permissions.plain import MAX_PARTS
from toolbus.untrusted_text import one_line
from toolbus_toolkits.shell.commands import Effect, effect_of
from toolbus_toolkits.shell.judging import (
    Verdict,
    base_name,
    changes_meaning,
    is_moved_by,
    judged,
)
from toolbus_toolkits.shell.places import Places, TooManyWords
from toolbus_toolkits.shell.reading import SimpleCommand, Word, read_line
from toolbus_toolkits.shell.rules import covers, matches_any, suggested
from toolbus_toolkits.workspace import Roots, SensitivePaths

__all__ = ["assess_line"]

_MAX_COMMANDS = MAX_PARTS
"""The most commands of one line, with those that others start."""
_MAX_DEPTH = 8
"""How deep commands may start others: `sudo env nice bash -c '...'` is four."""
_MAX_SHOWN = 4
"""How many commands a message tells about; the preview has more."""
_MAX_SOURCE_CHARS = 80
_MAX_PREVIEW_LINES = 100
_REPEATS = re.compile(r"\b(?:for|while|until|select|function|coproc)\b|\(\s*\)")
"""Words of a line that may run a command twice, or elsewhere than where it stands."""
_ENDS = re.compile(r"[;\n]|\|\||(?<![<>&])&(?![&>])")
"""What ends a list of commands that run only if all before them succeed."""


def assess_line(
    line: str,
    *,
    directory: str,
    environment: Mapping[str, str],
    roots: Roots,
    sensitive: SensitivePaths,
    patterns: Sequence[str] = (),
) -> Assessment:
    """Return what a command line would do, without running it.

    Args:
        line: What bash is given.
        directory: Where it starts.
        environment: The variables that it starts with.
        roots: The working directories.
        sensitive: The files that a person decides about.
        patterns: The patterns of rules that are asked about.
    """
    reading = read_line(line, environment)
    if reading.faults:
        return _unreadable("; ".join(reading.faults), patterns)
    places = Places(directory, home=environment.get("HOME", ""), roots=roots, sensitive=sensitive)
    commands = []
    for found in _all_commands(reading.commands):
        if found is None:
            limit = f"more than {_MAX_COMMANDS} commands, or {_MAX_DEPTH} inside of each other"
            return _unreadable(f"it has {limit}", patterns)
        commands.append(found)
    try:
        verdicts = _verdicts(line, commands, places, environment)
    except TooManyWords:
        return _unreadable("it has too many words", patterns)
    return _combined(verdicts, patterns, environment)


def _verdicts(
    line: str,
    commands: Sequence[tuple[SimpleCommand, Effect]],
    places: Places,
    environment: Mapping[str, str],
) -> list[Verdict]:
    """Judge the commands of a line, each in all directories where it may run."""
    # What `trap` is given runs at the end, wherever the line is then.
    has_trap = any(base_name(command) == "trap" for command, _ in commands)
    repeats = has_trap or _REPEATS.search(line) is not None
    if repeats:
        # A later `cd` may stand before an earlier command the next time.
        for _ in commands:
            before = places.directories
            for command, effect in commands:
                _change_directory(command, effect, places, environment)
            if places.directories == before or None in places.directories:
                break
    leading = 0 if repeats else _leading_changes(line, commands)
    verdicts = []
    for number, (command, effect) in enumerate(commands):
        verdicts.append(judged(command, effect, places, environment))
        is_certain = number < leading
        _change_directory(command, effect, places, environment, is_certain=is_certain)
    # A symlink that one command may put somewhere leads the others away.
    for placing in verdicts:
        for other in verdicts:
            if (repeats or other is not placing) and is_moved_by(placing, other):
                other.doubts.append("another command of the line may put a symlink in its place")
                other.is_outside = True
    return verdicts


def _unreadable(why: str, patterns: Sequence[str]) -> Assessment:
    """Return what is said of a line that cannot be read: it may be anything that a rule forbids."""
    message = f"The command line cannot be read before it runs: {one_line(why, 400)}."
    return Assessment(
        "ask",
        immune=True,
        message=message,
        matches=tuple(patterns),
        parts=((),),
        uncertain=tuple(patterns),
    )


def _all_commands(
    commands: Sequence[SimpleCommand],
) -> Iterator[tuple[SimpleCommand, Effect] | None]:
    """Yield each command of a line with its effect, and those that it starts; None at a limit."""
    left = [(command, 0) for command in reversed(commands)]
    count = 0
    while left:
        command, depth = left.pop()
        count += 1
        if count > _MAX_COMMANDS or depth > _MAX_DEPTH:
            yield None
            return
        effect = effect_of(command) if command.words else Effect(read_only=True, reads=())
        yield command, effect
        left += ((started, depth + 1) for started in reversed(effect.runs))


def _leading_changes(line: str, commands: Sequence[tuple[SimpleCommand, Effect]]) -> int:
    """Return how many changes of directory a line begins with, each followed by `&&`.

    What follows runs only if they succeed, unless the list ends before the line does. That is
    looked for in the text: a quoted `;` costs no more than a question.
    """
    count = 0
    rest = line.strip()
    for command, _ in commands:
        after = rest.removeprefix(command.source).lstrip()
        if base_name(command) != "cd" or after == rest or not after.startswith("&&"):
            break
        rest = after[2:].lstrip()
        count += 1
    return count if _ENDS.search(rest.replace("&&", "")) is None else 0


def _change_directory(
    command: SimpleCommand,
    effect: Effect,
    places: Places,
    environment: Mapping[str, str],
    *,
    is_certain: bool = False,
) -> None:
    name = base_name(command)
    if name == "popd":  # back to one of those where it has been
        return
    if name not in ("cd", "pushd", "chdir"):
        # `env -C folder rm x`, `find folder -execdir rm x`: what it starts is elsewhere.
        if effect.runs and effect.directory is not None:
            places.enter(places.entered(effect.directory))
        return
    if "CDPATH" in environment or any(entry.name == "CDPATH" for entry in command.assignments):
        places.enter((None,))
        is_certain = False
    is_home = name == "cd" and len(command.words) == 1
    word = None if is_home else effect.directory or Word(name, None)
    places.enter(places.entered(word), is_certain=is_certain)


def _combined(
    verdicts: Sequence[Verdict], patterns: Sequence[str], environment: Mapping[str, str]
) -> Assessment:
    found = {pattern for verdict in verdicts for pattern in _matching(patterns, verdict)}
    matches = tuple(pattern for pattern in patterns if pattern in found)
    uncertain = tuple(
        pattern
        for pattern in matches
        if not any(_certainly_matches(pattern, verdict) for verdict in verdicts)
    )
    if all(verdict.is_read_only for verdict in verdicts):
        return Assessment("pass", read_only=True, matches=matches, uncertain=uncertain)
    parts = []
    for verdict in verdicts:
        for command in _asked_about(verdict, environment):
            parts.append(tuple(pattern for pattern in patterns if covers(pattern, command)))
    immune = any(verdict.immune for verdict in verdicts)
    return Assessment(
        "ask",
        within_workdir=not immune and not any(verdict.is_outside for verdict in verdicts),
        immune=immune,
        message=_message(verdicts),
        preview=_preview(verdicts),
        suggestions=() if immune else _suggestions(verdicts, environment),
        matches=matches,
        parts=tuple(dict.fromkeys(parts)) or ((),),
        uncertain=uncertain,
    )


def _certainly_matches(pattern: str, verdict: Verdict) -> bool:
    """Whether a pattern matches a command by what is known of it, or a file that it writes."""
    started = (*verdict.effect.same, *map(_writing, verdict.written))
    for command in (verdict.command, *started):
        is_known = not command.takes_more and not any(
            word.value is None or word.is_pattern for word in command.words
        )
        if covers(pattern, command) or (is_known and matches_any(pattern, command)):
            return True
    return False


def _matching(patterns: Sequence[str], verdict: Verdict) -> Iterator[str]:
    """Yield the patterns that a command may match, or a file that it writes."""
    command = verdict.command
    effect = verdict.effect
    # What cannot be told before it runs, as `eval "$X"`, may run anything too.
    everywhere = effect.runs_words or bool(effect.immune)
    started = [*effect.same, *map(_writing, verdict.written)]
    if command.assignments or not (effect.read_only or effect.changes is not None):
        started += _programs_of_settings(command)
    for pattern in patterns:
        if matches_any(pattern, command, everywhere=everywhere) or any(
            matches_any(pattern, other) for other in started
        ):
            yield pattern


def _programs_of_settings(command: SimpleCommand) -> Iterator[SimpleCommand]:
    """Yield what settings of a command may run: `git -c alias.x='!rm y' x`, `PAGER=rm man ls`."""
    texts = [word.known.partition("=")[2].lstrip("!") for word in command.words[1:]]
    texts += (assignment.value.known for assignment in command.assignments)
    for text in texts:
        if words := text.split():
            yield SimpleCommand(tuple(Word(part, part) for part in words))


def _asked_about(verdict: Verdict, environment: Mapping[str, str]) -> Iterator[SimpleCommand]:
    """Yield the commands of a verdict that a rule has to allow, each on its own.

    A rule for `echo` is none for the files that `echo x > file` writes.
    """
    if verdict.needs_rule:
        kept = changes_meaning(verdict.command, environment)
        yield replace(verdict.command, assignments=kept)
    for word in verdict.written:
        yield _writing(word)


def _writing(word: Word) -> SimpleCommand:
    return SimpleCommand((Word(">", ">"), word), source=f"> {word.source}")


def _suggestions(verdicts: Sequence[Verdict], environment: Mapping[str, str]) -> tuple[Rule, ...]:
    found = []
    for verdict in verdicts:
        effect = verdict.effect
        # What deletes or changes files by its words is not allowed for all files at once.
        by_words = effect.changes is not None or effect.deletes or effect.runs or verdict.doubts
        for command in _asked_about(verdict, environment):
            found.append((command, bool(by_words)))
    return suggested(found)


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
    """Return what a line would do, for a person: what cannot be allowed by a rule comes first."""
    asked = [verdict for verdict in verdicts if not verdict.is_read_only and _reasons(verdict)]
    asked.sort(key=lambda verdict: not verdict.immune)
    told = [
        f"`{_shown(verdict.command)}`: {'; '.join(_reasons(verdict)[:_MAX_SHOWN])}"
        for verdict in asked[:_MAX_SHOWN]
    ]
    if len(asked) > _MAX_SHOWN:
        told.append(f"and {len(asked) - _MAX_SHOWN} more commands")
    return one_line("; ".join(told), 1_500) + "."


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
    return one_line(text, _MAX_SOURCE_CHARS)
