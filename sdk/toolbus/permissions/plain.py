"""Rules and assessments as plain maps: on the wire, and in stored states of agents.

What is at its default is left out. Reading is bounded, and raises `ValueError` for what is not
an assessment or a rule: who asked then knows nothing about the input, which is an ask.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

from toolbus.permissions.assessment import AssessedBehavior, Assessment
from toolbus.permissions.decision import PermissionDecision
from toolbus.permissions.rule import Rule
from toolbus.untrusted_text import one_line

__all__ = [
    "MAX_ASSESSMENT_BYTES",
    "MAX_ASSESS_S",
    "MAX_MATCHES",
    "MAX_MATCHES_BYTES",
    "MAX_MESSAGE_CHARS",
    "MAX_PARTS",
    "MAX_PREVIEW_BYTES",
    "MAX_REACHES_CHARS",
    "MAX_SUGGESTIONS",
    "assessment_from_plain",
    "assessment_to_plain",
    "decision_details",
    "rule_from_plain",
    "rule_to_plain",
]

MAX_MESSAGE_CHARS = 2_000
"""Of `message`, `hint`, `refusal` and `asks`: a person reads them before an answer (ASSESS-6)."""
MAX_PREVIEW_BYTES = 64 * 1024
"""Of `preview`, in UTF-8: a person reads it too (PROTOCOL.md, ASSESS-6)."""
MAX_SUGGESTIONS = 5
"""Rules of one assessment, of which a person chooses one (PROTOCOL.md, ASSESS-6)."""
MAX_MATCHES = 64
"""Patterns of one question: all are compared with all parts of an input (ASSESS-2)."""
MAX_MATCHES_BYTES = 16 * 1024
"""Of all these patterns together, in UTF-8."""
MAX_PARTS = 256
"""The most parts of one input: each names up to 64 patterns, in 16 KiB by their places."""
MAX_ASSESSMENT_BYTES = 256 * 1024
"""The most bytes of one packed assessment: all that it may contain is less than that."""
MAX_ASSESS_S = 5.0
"""Seconds that an answer may take (ASSESS-3): a person, or a turn, waits for it before a call."""
MAX_REACHES_CHARS = 129
"""The longest name of a tool: those of a toolkit and of a tool have at most 64 characters each."""
# `origin` is where this process read a rule. A rule that somebody else wrote must not claim one.
_RULE_KEYS = tuple(field.name for field in fields(Rule) if field.name != "origin")
_DEFAULTS = Assessment("pass")


def rule_to_plain(rule: Rule) -> dict[str, str]:
    """Return a rule as a map of text, without its `origin`."""
    values = {key: getattr(rule, key) for key in _RULE_KEYS}
    if rule.tool == "*":
        del values["tool"]
    return {key: value for key, value in values.items() if value is not None}


def rule_from_plain(value: object) -> Rule:
    """Read a rule.

    Raises `ValueError`, also for an unknown key: without that condition the rule covers more.
    """
    if not isinstance(value, dict) or "behavior" not in value:
        raise ValueError("a rule must be a map with a behavior")
    for key, text in value.items():
        if key not in _RULE_KEYS:
            raise ValueError(f"a rule has no key {one_line(repr(key), 64)}")
        if not isinstance(text, str):
            raise ValueError(f"{key} must be text")
    return Rule(**value)


def decision_details(decision: PermissionDecision) -> dict[str, Any]:
    """Return what decided, as the `details` of the error of a denied call."""
    details: dict[str, Any] = {"source": decision.source}
    if decision.rule is not None:
        details["rule"] = rule_to_plain(decision.rule)
    if decision.uncertain:
        details["uncertain"] = True
    if decision.hint:
        details["hint"] = decision.hint
    return details


def assessment_to_plain(assessment: Assessment) -> dict[str, Any]:
    """Return an assessment as a map of JSON values."""
    plain: dict[str, Any] = {"behavior": assessment.behavior}
    for field in fields(Assessment):
        value = getattr(assessment, field.name)
        if field.name != "behavior" and value != getattr(_DEFAULTS, field.name):
            plain[field.name] = value
    if assessment.suggestions:
        plain["suggestions"] = [rule_to_plain(rule) for rule in assessment.suggestions]
    if assessment.matches:
        plain["matches"] = list(assessment.matches)
    if assessment.parts:
        # By their places in `matches`: 256 times the text of 64 patterns is more than may be sent.
        places = {pattern: place for place, pattern in enumerate(assessment.matches)}
        plain["parts"] = [
            [places[pattern] for pattern in part if pattern in places] for part in assessment.parts
        ]
    if uncertain := frozenset(assessment.uncertain):
        at = [place for place, match in enumerate(assessment.matches) if match in uncertain]
        plain["uncertain"] = at
    return plain


def assessment_from_plain(value: object) -> Assessment:
    """Read an assessment that somebody else made; keys that are not known are ignored.

    Raises `ValueError` for any other value, and beyond a limit of this module. A suggestion that is
    no rule is left out: it decides nothing, and may be one of a newer version.
    """
    if not isinstance(value, dict):
        raise ValueError("an assessment must be a map")
    behavior: Any = value.get("behavior")
    if behavior not in get_args(AssessedBehavior):
        raise ValueError("behavior must be allow, ask, deny or pass")
    source = value.get("source", "tool")
    if source not in ("tool", "manifest"):
        raise ValueError("source must be tool or manifest")
    preview = _text(value, "preview", MAX_PREVIEW_BYTES)
    if len(preview.encode()) > MAX_PREVIEW_BYTES:
        raise ValueError(f"preview has over {MAX_PREVIEW_BYTES} bytes")
    matches = _matches(value.get("matches", []))
    parts = value.get("parts", [])
    if not isinstance(parts, list) or len(parts) > MAX_PARTS:  # fewer parts would allow more
        raise ValueError(f"parts must be a list of at most {MAX_PARTS}")
    return Assessment(
        behavior,
        read_only=_flag(value, "read_only"),
        within_workdir=_flag(value, "within_workdir"),
        immune=_flag(value, "immune"),
        message=_text(value, "message", MAX_MESSAGE_CHARS),
        preview=preview,
        suggestions=_suggestions(value.get("suggestions", [])),
        matches=matches,
        parts=tuple(_at("each of parts", part, matches) for part in parts),
        uncertain=_at("uncertain", value.get("uncertain", []), matches),
        hint=_text(value, "hint", MAX_MESSAGE_CHARS),
        source=source,
        reaches=_text(value, "reaches", MAX_REACHES_CHARS),
        refusal=_text(value, "refusal", MAX_MESSAGE_CHARS),
        asks=_text(value, "asks", MAX_MESSAGE_CHARS),
    )


def _flag(value: dict[Any, Any], key: str) -> bool:
    flag = value.get(key, False)
    if not isinstance(flag, bool):
        raise ValueError(f"{key} must be true or false")
    return flag


def _text(value: dict[Any, Any], key: str, max_chars: int) -> str:
    text = value.get(key, "")
    if not isinstance(text, str) or len(text) > max_chars:
        raise ValueError(f"{key} must be text of at most {max_chars} characters")
    return text


def _suggestions(values: object) -> tuple[Rule, ...]:
    if not isinstance(values, list) or len(values) > MAX_SUGGESTIONS:
        raise ValueError(f"suggestions must be a list of at most {MAX_SUGGESTIONS}")
    rules = []
    for value in values:
        try:
            rules.append(rule_from_plain(value))
        except ValueError:
            continue
    return tuple(rules)


def _matches(values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or len(values) > MAX_MATCHES:
        raise ValueError(f"matches must be a list of at most {MAX_MATCHES}")
    if not all(isinstance(pattern, str) for pattern in values):
        raise ValueError("matches must be text")
    if sum(len(pattern.encode()) for pattern in values) > MAX_MATCHES_BYTES:
        raise ValueError(f"matches have over {MAX_MATCHES_BYTES} bytes")
    return tuple(values)


def _at(label: str, places: object, matches: tuple[str, ...]) -> tuple[str, ...]:
    """Return the matches at some places. Raises ValueError for anything else."""
    if not isinstance(places, list) or len(places) > len(matches):
        raise ValueError(f"{label} must be a list, not longer than matches")
    if not all(type(place) is int and 0 <= place < len(matches) for place in places):
        raise ValueError(f"{label} must have places in matches")
    return tuple(matches[place] for place in places)
