"""What a docstring says of a function and of its parameters.

Reads the Google, NumPy and Sphinx styles. Never complains: what is in no known style is part of the
description.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["FunctionWords", "read_docstring"]

_STYLES = ("google", "numpy", "sphinx")


class FunctionWords(NamedTuple):
    """The words of one docstring."""

    description: str
    """Summary and body, without the sections about parameters, results and errors."""
    parameters: dict[str, str]
    """What is said of each parameter."""


def read_docstring(text: str | None) -> FunctionWords:
    """Split a docstring, as `inspect.getdoc` gives it, into its words."""
    if not text or not text.strip():
        return FunctionWords("", {})
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
    return FunctionWords("\n\n".join(body).strip(), parameters)


def _sections(text: str) -> list[Any]:
    # Imported here because a participant that only calls tools reads no docstrings.
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
