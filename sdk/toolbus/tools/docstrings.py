"""Reads the description of a function and of its parameters from a docstring.

Reads the Google, NumPy and Sphinx styles. Never raises: text in no known style is part of the
description.
"""

from __future__ import annotations

from inspect import cleandoc
from typing import Any, NamedTuple

__all__ = ["FunctionDocs", "read_docstring"]

_STYLES = ("google", "numpy", "sphinx")


class FunctionDocs(NamedTuple):
    """The parts of one docstring."""

    description: str
    """Summary and body, without the sections about parameters, results and errors."""
    parameters: dict[str, str]
    """The description of each parameter."""


def read_docstring(text: str | None) -> FunctionDocs:
    """Split a docstring, as `inspect.getdoc` returns it, into its parts."""
    if not text or not text.strip():
        return FunctionDocs("", {})
    if ":" not in text and "--" not in text:
        # In no style is there a section without one of these, and griffe is slow to import.
        return FunctionDocs(cleandoc(text).strip(), {})
    body: list[str] = []
    parameters: dict[str, str] = {}
    for section in _sections(text):
        match section.kind.value:
            case "text":
                body.append(section.value)
            case "admonition":
                body.append(f"{section.title}: {section.value.description}")
            case "parameters" | "other parameters":
                for parameter in section.value:
                    parameters[parameter.name.lstrip("*")] = parameter.description.strip()
    return FunctionDocs("\n\n".join(body).strip(), parameters)


def _sections(text: str) -> list[Any]:
    # Imported here because it takes long, and few participants read docstrings with sections.
    import griffe

    return griffe.parse_auto(
        griffe.Docstring(text),
        default="google",
        per_style_options={
            "google": {"warnings": False},
            "numpy": {"warnings": False},
            "sphinx": {"warnings": False},
        },
    )
