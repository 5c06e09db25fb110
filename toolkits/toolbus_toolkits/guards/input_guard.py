"""A middleware that checks the arguments of calls before the tool runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

from toolbus import CallNext, Chunk, InvalidArguments, ToolCall
from toolbus.bounded_logging import bounded_logger
from toolbus_toolkits.guards.parameter_kinds import (
    GuardedText,
    ParameterKind,
    check_kinds,
    texts_of,
)
from toolbus_toolkits.guards.rules import DEFAULT_RULES, InputRule

__all__ = ["InputGuard"]

_logger = bounded_logger(__name__)


class InputGuard:
    """A middleware that refuses arguments which are dangerous for what they are.

    A rule that blocks ends the call with `InvalidArguments`, `executed: no`; `details` has the
    path, the message and the rule. A rule that warns writes a line to the log, without the value.

    Args:
        rules: What is checked, in this order.
        kinds: What parameters are: `{"target": "path"}` for every tool, or
            `{"files.move.target": "path"}` for one. Without an entry the schema's `format` decides,
            then the parameter's name.
        allow: Rules that a tool is exempt from: `{"shell.run": ["command_substitution"]}`; `*` is
            every tool.

    Raises `ValueError` for two rules of one name, and for a kind in `kinds` and a rule in `allow`
    that there is not.
    """

    def __init__(
        self,
        rules: Sequence[InputRule] = DEFAULT_RULES,
        *,
        kinds: Mapping[str, ParameterKind] | None = None,
        allow: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._rules = tuple(rules)
        self._kinds = dict(kinds or {})
        check_kinds(self._kinds.values())
        self._allow = {tool: _names(names) for tool, names in (allow or {}).items()}
        names = [rule.name for rule in self._rules]
        if len(set(names)) < len(names):
            raise ValueError("two rules of this guard have one name")
        unknown = sorted(set().union(*self._allow.values()) - set(names)) if self._allow else []
        if unknown:
            text = f"allow names {unknown[0]!r}, which is no rule of this guard"
            raise ValueError(f"{text}: it has {', '.join(names)}")

    async def __call__(self, call: ToolCall, next: CallNext, /) -> AsyncGenerator[Chunk, None]:
        """Check the arguments, then run the call."""
        for found in texts_of(call.arguments, call.tool.input_schema, self._kinds_of(call)):
            self._check(call, found)
        async with aclosing(cast(Any, next(call))) as chunks:
            async for chunk in chunks:
                yield chunk

    def _kinds_of(self, call: ToolCall) -> Mapping[str, ParameterKind]:
        prefix = f"{call.tool.name}."
        own = {
            name.removeprefix(prefix): kind
            for name, kind in self._kinds.items()
            if name.startswith(prefix)
        }
        return {**self._kinds, **own}

    def _check(self, call: ToolCall, found: GuardedText) -> None:
        exempt = self._allow.get("*", frozenset()) | self._allow.get(call.tool.name, frozenset())
        for rule in self._rules:
            if found.kind not in rule.kinds or rule.name in exempt or not rule.matches(found.text):
                continue
            message = rule.message or f"it is refused by the rule {rule.name}"
            if rule.action == "warn":
                _logger.warning("%s at %s: %s (%s)", call.tool.name, found.path, message, rule.name)
                continue
            details = {"path": found.path, "message": message, "rule": rule.name}
            raise InvalidArguments(f"{found.path}: {message} ({rule.name})", details=details)


def _names(rules: Sequence[str]) -> frozenset[str]:
    if isinstance(rules, str):
        raise TypeError(f"allow has a list of rules for each tool: write [{rules!r}]")
    return frozenset(rules)
