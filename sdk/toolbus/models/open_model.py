"""Opens a model by its name."""

from __future__ import annotations

from toolbus.models.adapter import Model

__all__ = ["open_model"]


def open_model(name: str, base_url: str | None = None) -> Model:
    """Open a model."""
    raise NotImplementedError
