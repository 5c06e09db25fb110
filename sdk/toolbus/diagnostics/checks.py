"""Runs checks one after the other, local ones before remote ones, and collects their results.

A check whose precondition failed is skipped. The checks themselves are defined elsewhere; other
distributions add theirs through the entry point group `toolbus.checks`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

from toolbus.diagnostics.exit_codes import ExitCode

__all__ = ["CHECKS", "Check", "CheckFailed", "Finding", "Status", "run_checks"]

CHECKS = "toolbus.checks"
"""The entry point group of further checks: `redis` is an async function from a URL to findings,
`sandbox` a function that returns findings and the rows of a table. `key_sets` returns a `KeyRing`
with the key sets of its issuers at addresses."""
CheckContext = TypeVar("CheckContext")
Status: TypeAlias = Literal["ok", "warn", "fail", "skip"]
"""The outcome of a check; "warn" means that it works now but may fail later."""


class CheckFailed(Exception):
    """A check found something wrong.

    Args:
        found: The problem.
        repair: How to repair it.
        status: "warn" where everything works nevertheless, "skip" where the check is not permitted.
        exit_code: Replaces the exit code of the check.
    """

    def __init__(
        self, found: str, repair: str, *, status: Status = "fail", exit_code: ExitCode | None = None
    ) -> None:
        super().__init__(found)
        self.repair = repair
        self.status: Status = status
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    """The name of the check."""
    status: Status
    """Its outcome."""
    found: str
    """The result as text; it may contain untrusted text."""
    repair: str = ""
    """How to repair the problem; empty if there is none."""
    exit_code: ExitCode = ExitCode.OK
    """The exit code of the command if this is the first failure; `OK` unless the check failed."""


@dataclass(frozen=True, slots=True)
class Check(Generic[CheckContext]):
    """One check and its preconditions."""

    name: str
    """Its name, at most 8 letters."""
    run: Callable[[CheckContext], Awaitable[str]]
    """Returns the result as text; raises `CheckFailed`."""
    exit_code: ExitCode
    """The exit code of the command if this check fails."""
    needs: tuple[str, ...] = ()
    """The names of earlier checks that must have succeeded."""


async def run_checks(checks: Sequence[Check[CheckContext]], context: CheckContext) -> list[Finding]:
    """Run all checks in this order; skip those whose preconditions failed."""
    findings: list[Finding] = []
    causes: dict[str, str] = {}  # by each check that did not succeed: the check to repair first
    for check in checks:
        cause = next((causes[name] for name in check.needs if name in causes), None)
        if cause is not None:
            finding = Finding(check.name, "skip", f"requires {cause}")
        else:
            try:
                finding = Finding(check.name, "ok", await check.run(context))
            except CheckFailed as failure:
                code = ExitCode.OK
                if failure.status == "fail":
                    code = failure.exit_code or check.exit_code
                finding = Finding(check.name, failure.status, str(failure), failure.repair, code)
        findings.append(finding)
        if finding.status not in ("ok", "warn"):
            causes[check.name] = cause or check.name
    return findings
