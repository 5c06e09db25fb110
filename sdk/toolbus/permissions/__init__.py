"""Which calls may run: rules, modes, and what a tool says about one input. Pure, but for files."""

from typing import TYPE_CHECKING, Any

from toolbus.public_names import PublicNames

if TYPE_CHECKING:  # what type checkers read; `as` makes a name public for them
    from toolbus.permissions.assessment import Assessment as Assessment
    from toolbus.permissions.decision import PermissionDecision as PermissionDecision
    from toolbus.permissions.granted_rules import GrantedRule as GrantedRule
    from toolbus.permissions.permissions import Permissions as Permissions
    from toolbus.permissions.rule import Rule as Rule
    from toolbus.permissions.rule_file import RuleFileError as RuleFileError

# The server imports modules of this package, and needs none of these.
_names = PublicNames(__name__)

__all__ = list(_names)


def __getattr__(name: str) -> Any:
    return _names.load(name)


def __dir__() -> list[str]:
    return _names.listed()
