"""The modes, and the table of what each of them does."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Literal, TypeAlias, get_args

from toolbus.untrusted_text import one_line

__all__ = ["MODES", "OUTCOMES", "Mode", "Outcome", "Step", "mode_fault"]

Mode: TypeAlias = Literal["default", "accept_edits", "explore", "bypass", "dont_ask"]
"""What happens to calls that no rule decides."""
MODES: tuple[Mode, ...] = get_args(Mode)

Step: TypeAlias = Literal[
    "deny", "ask rule", "immune ask", "read-only", "own allow", "allow rule", "undecided"
]
Outcome: TypeAlias = Literal["allow", "ask", "deny", "skip", "ask if read-only"]

# The table of docs/guides/permissions.md: for each step, in this order, what follows from it in
# each mode of `MODES`. The first step that applies and is not skipped decides.
OUTCOMES: dict[Step, tuple[Outcome, Outcome, Outcome, Outcome, Outcome]] = {
    "deny": ("deny", "deny", "deny", "deny", "deny"),
    "ask rule": ("ask", "ask", "ask if read-only", "ask", "deny"),
    "immune ask": ("ask", "ask", "deny", "skip", "deny"),
    "read-only": ("allow", "allow", "allow", "allow", "allow"),
    "own allow": ("allow", "allow", "skip", "allow", "allow"),
    "allow rule": ("allow", "allow", "skip", "allow", "allow"),
    "undecided": ("ask", "ask", "deny", "allow", "deny"),
}


def mode_fault(value: object) -> str:
    """Return why something is not a mode, and what to write."""
    near = get_close_matches(value, MODES, n=1) if isinstance(value, str) else ()
    hint = f"; did you mean {near[0]}?" if near else ""
    shown = one_line(repr(value), 64)
    return f"mode must be {', '.join(MODES[:-1])} or {MODES[-1]}, not {shown}{hint}"
