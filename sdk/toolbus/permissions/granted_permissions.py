"""How what people have granted joins the permissions that judge a call: of a turn, or of a host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from toolbus.permissions.decision import JudgedCall
from toolbus.permissions.granted_rules import (
    GrantedRule,
    GrantedRules,
    arguments_digest,
    bond_of,
    granted_for,
)
from toolbus.permissions.rule import Rule

if TYPE_CHECKING:  # a host that has no policy imports no permissions
    from toolbus.permissions.permissions import Permissions

__all__ = ["GrantedPermissions"]

_MAX_JOINED = 64
"""Combinations of permissions and granted rules of which the index is cached."""


class GrantedPermissions:
    """The granted rules of one state, as they concern a call.

    `has_input` of each method says whether the call sends more than its arguments: then no rule for
    exactly its arguments is granted or counts, as they do not say what else it sends.
    """

    def __init__(self, rules: GrantedRules) -> None:
        self.rules: GrantedRules = rules
        self._joined: dict[
            tuple[int, tuple[GrantedRule, ...]], tuple[Permissions, Permissions]
        ] = {}

    def grant(
        self,
        call: JudgedCall,
        reaches: str,
        rules: Sequence[Rule],
        bases: Iterable[Permissions],
        *,
        has_input: bool,
    ) -> None:
        """Grant what a person has allowed with an answer about a call.

        Args:
            call: The call.
            reaches: The tool that it reaches, if its tool only forwards.
            rules: The rules; none stands for exactly this call.
            bases: The permissions that judge it.
            has_input: See the class.
        """
        if has_input and not rules:
            return
        with suppress(ValueError):  # the tool says that it reaches what is not the name of a tool
            granted = [granted_for(call, reaches, rule.match, "") for rule in rules]
            if not rules:
                granted = [granted_for(call, reaches, None, arguments_digest(call.arguments))]
            for rule in granted:
                self.rules.add(rule)
                if rule.match is not None:
                    for base in bases:
                        self._make_room(call, rule, base)

    def _make_room(self, call: JudgedCall, granted: GrantedRule, base: Permissions) -> None:
        # A tool is asked about so many patterns at once. One beyond them would never match, so that
        # the person would be asked again and again: older ones make room for it.
        for older in self.rules.of(granted.bond):
            now = self.joined(base, call, granted.reaches, has_input=True)
            if granted.match in now.patterns(call, granted.reaches) or older == granted:
                return
            if older.match is not None:
                self.rules.discard(older)

    def covering(
        self, call: JudgedCall, reaches: str, *, has_input: bool
    ) -> tuple[GrantedRule, ...]:
        """Return the rules that concern a call; their patterns may still not match it."""
        bound = self.rules.of(bond_of(call)) if self.rules else ()
        digest = ""
        if not has_input and any(granted.arguments for granted in bound):
            digest = arguments_digest(call.arguments)
        return tuple(
            granted
            for granted in bound
            if granted.reaches == reaches and granted.arguments in ("", digest)
        )

    def joined(
        self, base: Permissions, call: JudgedCall, reaches: str, *, has_input: bool
    ) -> Permissions:
        """Return permissions with the granted rules that concern a call."""
        covering = self.covering(call, reaches, has_input=has_input)
        if not covering:
            return base
        # The base stands in the value, so that no other object gets its id.
        known = self._joined.get((id(base), covering))
        if known is None:
            if len(self._joined) >= _MAX_JOINED:
                self._joined.clear()
            rules = [rule for granted in covering for rule in granted.rules()]
            known = self._joined[id(base), covering] = (base, base.with_rules(rules))
        return known[1]
