"""Files to begin with: a toolkit, a tool, an agent, a skill or a workflow, and a project for them.

`toolbus new` and `toolbus init` write them, and the toolkit `codegen` does for an agent. The texts
are in `templates`; what they become for one name is in `docs/examples/scaffold`, where it is
checked and run.
"""

from __future__ import annotations

import keyword
import sys
import sysconfig
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.resources import files
from string import Template
from types import MappingProxyType
from typing import Literal, TypeAlias

from toolbus.auth.grants import is_toolkit_name
from toolbus.untrusted_text import SHOWN_CHARS, one_line, shortened

__all__ = ["ScaffoldKind", "scaffold"]

ScaffoldKind: TypeAlias = Literal["toolkit", "tool", "agent", "skill", "workflow"]
"""What files are written for."""

_USED = frozenset({"conftest", "pydantic", "pytest", "toolbus", "toolbus_server"})
"""Modules that what is written imports, or that pytest does, whether they are installed or not."""
_PLACES = tuple(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))
_TOOLKIT = {"$module.py": "toolkit.py", "test_$module.py": "test_toolkit.py"}
_TEMPLATES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "toolkit": _TOOLKIT,
        "tool": {"$module.py": "tool.py", "test_$module.py": "test_tool.py"},
        "agent": {
            "$module.py": "agent.py",
            "test_$module.py": "test_agent.py",
            "test_$module.jsonl": "test_agent.jsonl",
        },
        "skill": {"$name/SKILL.md": "SKILL.md"},
        "workflow": {"$module.py": "workflow.py", "test_$module.py": "test_workflow.py"},
        "project": {"pyproject.toml": "pyproject.toml", ".env.example": "env.example", **_TOOLKIT},
    }
)
"""The template of each file, by its path."""


def scaffold(kind: ScaffoldKind | Literal["project"], name: str) -> dict[str, str]:
    """Return the text of each file by its path, which has `/` in it where a folder belongs to it.

    Args:
        kind: What they are for; a project has a toolkit.
        name: Its name: a-z, 0-9, _ and -. The module has `_` in place of `-`.

    Raises `ValueError`, with a text for a person, for a name that it cannot have.
    """
    if not is_toolkit_name(name) or not name[-1].isalnum():
        shown = shortened(one_line(name), SHOWN_CHARS)
        raise ValueError(
            f"{shown!r} is not a name: write a letter, then a-z, 0-9, _ and -, 64 in all, with a"
            " letter or digit last"
        )
    module = name.replace("-", "_")
    if kind != "skill":
        if keyword.iskeyword(module):
            raise ValueError(f"{name!r} is a keyword of Python: no program could import it")
        if module in sys.stdlib_module_names or module in _USED or _is_installed(module):
            raise ValueError(f"{name!r} is the name of another module, which it would hide")
    folder = files(__name__) / "templates"
    return {
        Template(path).substitute(module=module, name=name): Template(
            (folder / f"{template}.txt").read_text(encoding="utf-8")
        ).substitute(module=module, name=name)
        for path, template in _TEMPLATES[kind].items()
    }


def _is_installed(module: str) -> bool:
    """Whether a package that may be imported with what is written has this name."""
    return PathFinder.find_spec(module, list(_PLACES)) is not None
