"""Values of replies, which may be of any type: another one than a field should have is empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["as_list", "as_object", "as_text"]


def as_text(value: object) -> str:
    """Return a text; "" for anything else."""
    return value if isinstance(value, str) else ""


def as_object(value: Any) -> Mapping[str, Any]:
    """Return an object; {} for anything else."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """Return a list; [] for anything else."""
    return value if isinstance(value, list) else []
