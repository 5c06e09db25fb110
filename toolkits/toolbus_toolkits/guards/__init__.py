"""Two middlewares between a model and its tools: what goes in, and what comes out.

`InputGuard` checks arguments by what they are: a path, an address, a command, or free text.
`OutputGuard` removes secrets from results, cuts them, and marks what comes from outside. They find
what is known; they replace neither grants nor a sandbox.
"""

from __future__ import annotations

from toolbus_toolkits.guards.input_guard import DEFAULT_RULES, InputGuard, InputRule, ParameterKind
from toolbus_toolkits.guards.output_guard import OutputGuard

__all__ = ["DEFAULT_RULES", "InputGuard", "InputRule", "OutputGuard", "ParameterKind"]
