"""How long a test waits for what has to come: a guard against hanging that judges nothing."""

from __future__ import annotations

__all__ = ["PATIENCE_S"]

PATIENCE_S = 100.0
"""Far above what anything takes, also on a machine with ten times more to do than it can; less
than a test may take, so that what did not come is named."""
