"""Decides whether a call may run: modes and rules, and what the tool says about its input."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple, Self

from toolbus.auth.participant_names import Named, full_name
from toolbus.permissions.assessment import Assessment
from toolbus.permissions.decision import DecisionSource, JudgedCall, JudgedTool, PermissionDecision
from toolbus.permissions.modes import MODES, OUTCOMES, Mode, Step, mode_fault
from toolbus.permissions.plain import MAX_MATCHES, MAX_MATCHES_BYTES, MAX_SUGGESTIONS
from toolbus.permissions.rule import Rule, RuleBehavior, name_fault_in_rules
from toolbus.permissions.rule_index import (
    People,
    RuleGroup,
    RuleIndex,
    rule_order,
    tool_owner,
    trusts_owner,
)
from toolbus.untrusted_text import SHOWN_CHARS, json_text, one_line, shortened

__all__ = ["Permissions"]

_NO_QUESTIONS = "denies what it would ask"
# Why a pattern counts that is not known to match, to follow "as".
_NOT_JUDGED = "the tool could not judge this input"
_NOT_COMPARED = (
    f"no more than {MAX_MATCHES} patterns, of {MAX_MATCHES_BYTES:,} bytes, are compared with a call"
)


class _Finding(NamedTuple):
    """One step that applies to a call."""

    step: Step
    words: str
    """Why it applies: a sentence without its full stop; empty for the last step."""
    source: DecisionSource
    rule: Rule | None = None
    uncertain: bool = False
    """Whether the rule only may cover the call, because its tool could not judge it."""
    hint: str = ""
    """How the tool says that the call may be changed."""


class _Concerning(NamedTuple):
    """The groups of rules that concern one call."""

    deny: list[RuleGroup]
    ask: list[RuleGroup]
    allow: list[RuleGroup]

    def asked(self) -> tuple[tuple[str, ...], bool]:
        """Return the patterns that the tool is asked about, and whether there are more.

        Denials are first and allow rules last, and nothing follows one that is too long: so one
        more deny or ask rule never lets an allow pattern in that was beyond the limit before.
        """
        asked: dict[str, None] = {}
        size = 0
        for groups in self:
            for pattern in merge(*(group.by_match for group in groups)):
                if pattern in asked:
                    continue
                size += len(pattern.encode())
                if len(asked) == MAX_MATCHES or size > MAX_MATCHES_BYTES:
                    return tuple(asked), True
                asked[pattern] = None
        return tuple(asked), False

    def limited(self) -> frozenset[str] | None:
        """Return the asked patterns where there are more; None where all are asked."""
        groups = [group for groups in self for group in groups if group.by_match]
        if (
            sum(len(group.by_match) for group in groups) <= MAX_MATCHES
            and sum(group.match_bytes for group in groups) <= MAX_MATCHES_BYTES
        ):
            return None
        asked, are_more = self.asked()
        return frozenset(asked) if are_more else None


@dataclass(frozen=True, slots=True)
class Permissions:
    """Rules, and a mode for what they do not decide.

    The permissions of an agent bind this agent only; as the `policy` of a toolkit they bind every
    caller of it.

    Raises:
        ValueError: There is no such mode, or an owner cannot have this name.
        TypeError: A rule is not a `Rule`, or a list is text.
    """

    mode: Mode = "default"
    """What happens to what no rule decides: "default" and "accept_edits" ask, "explore" and
    "dont_ask" deny, "bypass" allows."""
    rules: tuple[Rule, ...] = ()
    """The rules; their order means nothing."""
    workdirs: tuple[str, ...] = field(default=(), kw_only=True)
    """The working directories; tools of this process find them as `context.workdirs`."""
    trusted_owners: tuple[str, ...] = field(default=(), kw_only=True)
    """Owners of toolkits whose word may loosen: names, or `alias/name`."""
    _index: RuleIndex = field(init=False, repr=False, compare=False)
    _trusted: frozenset[str] = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        mode: Mode = "default",
        rules: Iterable[Rule] = (),
        *,
        workdirs: Iterable[str | os.PathLike[str]] = (),
        trusted_owners: Iterable[str] = (),
    ) -> None:
        if mode not in MODES:
            raise ValueError(mode_fault(mode))
        given = tuple(_list("rules", rules))
        for rule in given:
            if not isinstance(rule, Rule):
                raise TypeError(f"rules: {_shown(rule)} is not a Rule")
        folders = tuple(os.fspath(folder) for folder in _list("workdirs", workdirs))
        owners = tuple(_list("trusted_owners", trusted_owners))
        for owner in owners:
            if (fault := name_fault_in_rules(owner)) is not None:
                raise ValueError(f"trusted_owners: {_shown(owner)} {fault}")
        object.__setattr__(self, "mode", mode)
        object.__setattr__(self, "rules", given)
        object.__setattr__(self, "workdirs", folders)
        object.__setattr__(self, "trusted_owners", owners)
        object.__setattr__(self, "_index", RuleIndex(given))
        object.__setattr__(self, "_trusted", frozenset(owners))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Read a rule file; its relative `workdirs` are relative to the file.

        Raises `RuleFileError`, a `ValueError`, with path and line, for any mistake in it.
        """
        from toolbus.permissions.rule_file import read_rule_file  # few programs read one

        return cls(**read_rule_file(path))

    def with_rules(self, rules: Iterable[Rule]) -> Self:
        """Return these permissions with more rules."""
        return replace(self, rules=(*self.rules, *_list("rules", rules)))

    def decide(self, call: JudgedCall, assessment: Assessment) -> PermissionDecision:
        """Decide about a call, with what its tool says about this very input.

        What loosens counts only from tools of this process, of the caller's own identity, and of
        `trusted_owners`; what denies or asks counts from anybody.

        Args:
            call: The call, as a middleware gets it.
            assessment: The tool's answer to the patterns of `patterns`. If it names another tool
                that the call reaches, and this brings further patterns, the answer to those.
        """
        judged = self._judged(call, assessment)
        # An ask rule must not let a person be asked about what is denied without it.
        is_immune = assessment.behavior == "ask" and assessment.immune
        is_read_only = judged.is_trusted and assessment.read_only and not is_immune
        at = MODES.index(self.mode)  # the column of the table
        for finding in self._findings(judged):
            outcome = OUTCOMES[finding.step][at]
            if outcome == "ask if read-only":
                outcome = "ask" if is_read_only else "deny"
            if outcome != "skip":
                return self._decision(finding, outcome, judged)
        raise AssertionError("the last step decides")

    def trusts(self, tool: JudgedTool, caller: Named) -> bool:
        """Whether the word of a tool's owner counts for a caller that has these permissions."""
        return trusts_owner(self._trusted, tool_owner(tool), caller)

    def patterns(self, call: JudgedCall, reaches: str = "") -> tuple[str, ...]:
        """Return the patterns that the tool is to be asked about: at most 64, of 16 KiB in all.

        Those of the rules that concern the call by tool, owner, principal and caller. Of rules
        beyond the limit, `decide` takes the patterns of denials and asks as matching, and those of
        allow rules as not matching.

        Args:
            call: The call.
            reaches: The tool that the call reaches, `toolkit.tool`, where its tool only forwards.
        """
        return self._concerning(call.tool, reaches, People(call)).asked()[0]

    def settles(self, call: JudgedCall) -> PermissionDecision | None:
        """Return the denial of a call that no assessment can change, so that nothing is asked."""
        judged = self._judged(call, Assessment("pass"))
        found = judged.denial()
        return found and self._decision(found, "deny", judged)

    def _judged(self, call: JudgedCall, assessment: Assessment) -> _Judged:
        people = People(call)
        is_trusted = people.trusts_owner(self._trusted)
        concerning = self._concerning(call.tool, assessment.reaches, people)
        return _Judged(call.tool, assessment, people, is_trusted, concerning)

    def _concerning(self, tool: JudgedTool, reaches: str, people: People) -> _Concerning:
        # A toolkit with an alias in a turn must not escape what was written for its own name.
        # What allows is written for the name that is seen.
        strict = self._index.of(tool.name, tool.own_name, reaches).concerning(people)
        allow = strict["allow"]
        if tool.own_name not in ("", tool.name):
            allow = self._index.of(tool.name, reaches).concerning(people)["allow"]
        return _Concerning(strict["deny"], strict["ask"], allow)

    def _findings(self, judged: _Judged) -> Iterator[_Finding]:
        """Return the steps that apply, in the order of the table."""
        tool, assessment = judged.tool, judged.assessment
        if denied := judged.denial():
            yield denied
        if assessment.behavior == "deny":
            words = judged.with_message(f"{_name(tool)} denies {judged.call}")
            yield _Finding("deny", words, "tool")
        if assessment.refusal:
            words = (
                f"The policy of the host would refuse {judged.call}: {_quoted(assessment.refusal)}"
            )
            yield _Finding("deny", words, "policy")
        if asked := judged.strict_rule("ask rule", "asks about", judged.concerning.ask):
            yield asked
        if assessment.behavior == "ask" and assessment.immune:
            words = judged.with_message(
                f"{_name(tool)} wants a person to decide about {judged.call}"
            )
            yield _Finding("immune ask", words, "tool")
        if judged.is_trusted:
            yield from self._loosened_by_tool(judged)
        if allowing := judged.allow_rules(self._index):
            words = f"{_listed(allowing)} {judged.call}"
            yield _Finding("allow rule", words, "rule", allowing[0])
        yield _Finding("undecided", "", "mode")

    def _loosened_by_tool(self, judged: _Judged) -> Iterator[_Finding]:
        tool, assessment = judged.tool, judged.assessment
        if assessment.read_only:
            words = f"{_name(tool)} changes nothing with this input"
            yield _Finding("read-only", words, "tool")
        if assessment.behavior == "allow":
            words = judged.with_message(f"{_name(tool)} allows {judged.what} itself")
            yield _Finding("own allow", words, "tool")
        elif assessment.within_workdir and self.mode == "accept_edits":
            words = f"All that {judged.what} changes is within a working directory"
            yield _Finding("own allow", words, "mode")

    def _decision(
        self, finding: _Finding, behavior: RuleBehavior, judged: _Judged
    ) -> PermissionDecision:
        if finding.step == "undecided":
            reason = self._undecided(judged)
        elif finding.step in ("ask rule", "immune ask") and behavior == "deny":
            is_quiet = self.mode == "dont_ask"
            denies = _NO_QUESTIONS if is_quiet else "allows only what changes nothing"
            reason = f"{finding.words}; the mode {self.mode} {denies}."
        elif finding.source == "mode":
            reason = f"{finding.words}; the mode {self.mode} allows that."
        else:
            reason = f"{finding.words}."
        # A person may grant them later, after what `dont_ask` denied in place of asking.
        is_ask = behavior == "ask" or (
            self.mode == "dont_ask" and OUTCOMES[finding.step][0] == "ask"
        )
        suggestions = judged.suggestions() if is_ask else ()
        return PermissionDecision(
            behavior,
            reason,
            finding.rule,
            finding.source,
            suggestions,
            self.mode,
            finding.uncertain,
            finding.hint,
        )

    def _undecided(self, judged: _Judged) -> str:
        """Return why the mode decides what nothing else decided."""
        assessment = judged.assessment
        lacks = f"No rule allows this call{judged.reach}"
        if len(assessment.parts) > 1 and judged.concerning.allow:
            lacks = f"Not each part of {judged.what} has a rule that allows it"
        if self.mode == "bypass":
            return "The mode bypass allows what no rule forbids."
        if self.mode == "explore":
            words = "The mode explore allows only what changes nothing"
        elif self.mode == "dont_ask":
            words = f"{lacks}; the mode {self.mode} {_NO_QUESTIONS}"
        else:
            words = f"{lacks}, and the mode {self.mode} asks about it"
        loosens = (
            assessment.read_only
            or assessment.within_workdir
            or assessment.behavior == "allow"
            or assessment.matches
        )
        if loosens and not judged.is_trusted:
            words += f"; {_untrusted(judged.tool)}, so its word allows nothing"
        return f"{judged.with_message(words)}."


class _Judged(NamedTuple):
    """What is known about one call."""

    tool: JudgedTool
    assessment: Assessment
    people: People
    is_trusted: bool
    concerning: _Concerning

    @property
    def call(self) -> str:
        """The call, at the end of a clause."""
        return f"this call{self.reach}"

    @property
    def what(self) -> str:
        """The call, with words of the same clause after it."""
        return f"{self.call}," if self.reach else self.call

    @property
    def reach(self) -> str:
        """The tool that the call reaches, if it only forwards, to follow a noun."""
        reaches = self.assessment.reaches
        return f", which reaches {one_line(reaches, 140)}" if reaches else ""

    def denial(self) -> _Finding | None:
        """Return the rule that denies; its words say whether it only may cover the call."""
        return self.strict_rule("deny", "denies", self.concerning.deny)

    def strict_rule(self, step: Step, verb: str, groups: Sequence[RuleGroup]) -> _Finding | None:
        """Return the rule that denies or asks, as `denial` does."""
        if not groups:
            return None
        wholes = [group.whole for group in groups if group.whole is not None]
        whole = min(wholes, key=rule_order, default=None)
        if whole is not None:
            return _Finding(step, f"The rule {whole} {verb} {self.call}", "rule", whole)
        found, doubt = self._strict_pattern(groups)
        if found is None:
            return None
        hint = self.assessment.hint if self.is_trusted else ""
        words = f"The rule {found} {verb} {self.call}"
        if doubt:
            words = f"As {doubt}, the rule {found} might cover {self.call}"
        if doubt == _NOT_JUDGED:
            words = self.with_message(words)
        if hint and hint not in words:
            words = f"{words}; it says: {_quoted(hint)}"
        return _Finding(step, words, "rule", found, uncertain=doubt == _NOT_JUDGED, hint=hint)

    def _strict_pattern(self, groups: Sequence[RuleGroup]) -> tuple[Rule | None, str]:
        """Return a rule whose pattern counts, and why that is uncertain; empty where it matches."""
        assessment = self.assessment
        asked: frozenset[str] | None = frozenset()
        doubt = _NOT_JUDGED
        if not self.is_trusted:
            doubt = _untrusted(self.tool)
        elif assessment.source == "tool":
            certain = [match for match in assessment.matches if match not in assessment.uncertain]
            if found := self._matching(groups, certain):
                return found, ""
            if found := self._matching(groups, assessment.uncertain):
                return found, doubt
            asked = self.concerning.limited()
            doubt = _NOT_COMPARED
        if asked is None:
            return None, ""
        unknown: list[Rule] = []
        for group in groups:
            # At most one more than was asked is looked at.
            rules = (rule for match, rule in group.by_match.items() if match not in asked)
            unknown += islice(rules, 1)
        return min(unknown, key=rule_order, default=None), doubt

    def allow_rules(self, index: RuleIndex) -> tuple[Rule, ...]:
        """Return the rules that allow the call, or what it reaches; empty if it is not allowed.

        A tool that forwards decides what it reaches. From an owner that is not trusted both its
        own name and the reached one have to be allowed.
        """
        tool, reaches = self.tool.name, self.assessment.reaches
        if not reaches:
            return self._allowing(self.concerning.allow)
        found = self._allowing(index.of(reaches).concerning(self.people)["allow"])
        if not found or self.is_trusted:
            return found
        return found if self._allowing(index.of(tool).concerning(self.people)["allow"]) else ()

    def _allowing(self, groups: Sequence[RuleGroup]) -> tuple[Rule, ...]:
        wholes = [group.whole for group in groups if group.whole is not None]
        found = min(wholes, key=rule_order, default=None)
        if found is not None:
            return (found,)
        if not self.is_trusted or self.assessment.source != "tool":
            return ()
        assessment, limited = self.assessment, self.concerning.limited()
        allowing: dict[Rule, None] = {}
        for matches in assessment.parts or (assessment.matches,):
            certain = [match for match in matches if match not in assessment.uncertain]
            found = self._matching(groups, certain, limited)
            if found is None:  # one part that no rule allows is enough
                return ()
            allowing[found] = None
        return tuple(allowing)

    def _matching(
        self,
        groups: Sequence[RuleGroup],
        matches: Sequence[str],
        asked: frozenset[str] | None = None,
    ) -> Rule | None:
        """Return the first rule with one of these patterns, of those that were asked if given."""
        matching = (
            group.by_match[match]
            for match in matches
            if asked is None or match in asked
            for group in groups
            if match in group.by_match
        )
        return min(matching, key=rule_order, default=None)

    def suggestions(self) -> tuple[Rule, ...]:
        """Return the rules that the tool suggests, as far as granting them is safe.

        Those that allow this tool, or the one that it reaches, and nothing else. They get the name
        of the tool in the turn, and its owner, so that they cover no other toolkit of that name;
        for whom they hold is for the person who grants them. A pattern of an owner that is not
        trusted never matches, so that it is of no use; nor is one that a rule for another part has.
        """
        tool = self.tool
        name = {tool.name: tool.name, self.assessment.reaches: self.assessment.reaches}
        name.setdefault(tool.own_name, tool.name)
        owner = full_name(tool.owner, tool.alias) if tool.owner else None
        has: set[str | None] = set()
        if self.assessment.parts and not self.assessment.reaches:
            has.update(*(group.by_match for group in self.concerning.allow))
            has &= set(self.assessment.matches)
        return tuple(
            Rule(behavior="allow", tool=name[rule.tool], match=rule.match, owner=owner)
            for rule in self.assessment.suggestions[:MAX_SUGGESTIONS]
            if rule.behavior == "allow"
            and rule.tool in name
            and rule.match not in has
            and (self.is_trusted or rule.match is None)
        )

    def with_message(self, words: str) -> str:
        """Add what the tool says, quoted as its owner's words where that is not trusted."""
        message = self.assessment.message
        if not message:
            return words
        speaker = "it" if self.is_trusted else f"{_owner(self.tool)} (not trusted)"
        return f"{words}; {speaker} says: {_quoted(message)}"


def _listed(allowing: Sequence[Rule]) -> str:
    """Return the rules that allow a call, one for each of its parts, at the start of a clause."""
    if len(allowing) == 1:
        return f"The rule {allowing[0]} allows"
    named = [str(rule) for rule in allowing[:5]]
    if len(allowing) > 5:
        named.append(f"{len(allowing) - 5} more")
    return f"The rules {', '.join(named[:-1])} and {named[-1]} together allow"


def _name(tool: JudgedTool) -> str:
    return one_line(tool.name, 140)


def _owner(tool: JudgedTool) -> str:
    return f"its owner {shortened(one_line(full_name(tool.owner, tool.alias)), 170)}"


def _untrusted(tool: JudgedTool) -> str:
    return f"{_owner(tool)} is not in trusted_owners (flag --trust)"


def _quoted(text: str) -> str:
    # As JSON, so that no text can end its quotes.
    return json_text(shortened(one_line(text), SHOWN_CHARS))


def _list(label: str, values: Iterable[object]) -> Iterable[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{label} must be a list, not {_shown(values)}")
    return values


def _shown(value: object) -> str:
    return one_line(repr(value), 64)
