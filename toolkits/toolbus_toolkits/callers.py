"""Whose a call is: what a toolkit keeps for one of them, no other one gets."""

from __future__ import annotations

from typing import TypeAlias

from toolbus import ToolContext

__all__ = ["Asker", "asker_of"]

Asker: TypeAlias = tuple[tuple[str, str] | None, ...]
"""Those behind a call, each by issuer and name."""


def asker_of(context: ToolContext) -> Asker:
    """Return those behind a call: its caller, its principal, and whom it was forwarded for.

    What an agent runs for one user is nothing of another, nor of itself.
    """
    principal = context.on_behalf_of
    behind = (context.caller, principal, *context.forwarded_for)
    return tuple(None if each is None else (each.issuer, each.name) for each in behind)
