"""Which calls may run: rules, modes, and what a tool says about one input. Pure, but for files."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers read
    from toolbus.permissions.assessment import Assessment as Assessment
    from toolbus.permissions.permissions import Permissions as Permissions
    from toolbus.permissions.permit import Permit as Permit
    from toolbus.permissions.rule import Rule as Rule
    from toolbus.permissions.rule_file import RuleFileError as RuleFileError

# The server imports modules of this package, and needs none of these.
_HOMES = {
    "Assessment": "toolbus.permissions.assessment",
    "Permissions": "toolbus.permissions.permissions",
    "Permit": "toolbus.permissions.permit",
    "Rule": "toolbus.permissions.rule",
    "RuleFileError": "toolbus.permissions.rule_file",
}

__all__ = ["Assessment", "Permissions", "Permit", "Rule", "RuleFileError"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
