"""What people have granted to the callers of one definition at this host, until the process ends.

Each rule is listed at the server by a `Hold` of the kind `granted` (PROTOCOL.md, HOLD-13), which
stays open until somebody takes the rule back, or until the host withdraws it. A rule that cannot be
listed, as at a server that knows of none, counts all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import Cancelled, ConnectionLost, HostLost, RoomException
from toolbus.permissions.decision import JudgedCall
from toolbus.permissions.granted_permissions import GrantedPermissions
from toolbus.permissions.granted_rules import GrantedRule, GrantedRules
from toolbus.permissions.rule import Rule
from toolbus.wire import pack_body

if TYPE_CHECKING:
    from toolbus.permissions.permissions import Permissions
    from toolbus.tools.toolkit import Toolkit

__all__ = ["AskPerson", "HostGrants"]

_logger = bounded_logger(__name__)

AskPerson: TypeAlias = Callable[..., Awaitable[dict[str, Any]]]
"""Sends a `Hold` with these fields, and returns the body of its reply: `Caller.ask_person`."""


class HostGrants(GrantedPermissions):
    """The granted rules of one definition at this host."""

    def __init__(self) -> None:
        super().__init__(GrantedRules())
        self._listings: dict[GrantedRule, asyncio.Task[None]] = {}
        self._ask: AskPerson | None = None
        self._options_of: Callable[[GrantedRule], dict[str, Any]] = lambda _: {}

    def grant(
        self,
        call: JudgedCall,
        reaches: str,
        rules: Sequence[Rule],
        bases: Iterable[Permissions],
        *,
        has_input: bool,
    ) -> None:
        """Grant as `GrantedPermissions.grant` does, and list what is new."""
        super().grant(call, reaches, rules, bases, has_input=has_input)
        self._update_listings()

    def list_at(self, ask: AskPerson, toolkit: Toolkit, digest: str, *, public: bool) -> None:
        """List the rules on a connection on which the toolkit has just been registered."""
        self.withdraw()
        self._ask = ask

        def options_of(rule: GrantedRule) -> dict[str, Any]:
            tool = toolkit.get_tool(rule.own_name.partition(".")[2])
            return {
                "tool": f"{toolkit.name}.{tool.name}",
                "definition": digest,
                "public": public,
                "approvers": list(tool.approvers or toolkit.approvers),
                "name": rule.principal,
                "issuer": rule.principal_issuer,
            }

        self._options_of = options_of
        self._update_listings()

    def withdraw(self) -> None:
        """Withdraw all listings: the connection or the toolkit is not served any more."""
        self._ask = None
        for listing in self._listings.values():
            listing.cancel()
        self._listings.clear()

    def end(self) -> None:
        """Forget all rules: the definition is not hosted any more."""
        self.withdraw()
        self.rules: GrantedRules = GrantedRules()

    def _update_listings(self) -> None:
        granted = dict.fromkeys(self.rules)
        for rule in [rule for rule in self._listings if rule not in granted]:
            self._listings.pop(rule).cancel()  # an older one has made room
        if self._ask is None:
            return
        for rule in granted:
            if rule not in self._listings:
                # The task outlives the call in which the rule was granted, and its span.
                listing = self._list(self._ask, rule)
                self._listings[rule] = asyncio.get_running_loop().create_task(
                    listing, context=Context()
                )

    async def _list(self, ask: AskPerson, rule: GrantedRule) -> None:
        body = pack_body(rule.to_plain())
        options = self._options_of(rule)
        try:
            # Taken back as the reply is read: the next frame may be a call that the rule covers.
            await ask(
                None,
                "granted",
                sha256(body).digest(),
                body,
                options,
                on_result=lambda _: self.rules.discard(rule),
            )
        except (Cancelled, ConnectionLost, HostLost):
            return  # of this connection; the next one lists it again
        except RoomException as error:
            _logger.warning("%s is granted, and cannot be listed or taken back: %s", rule, error)
            return
        _logger.info("taken back: %s", rule)
        self._listings.pop(rule, None)
