"""What a doctor finds: checks made one after the other, the near before the far.

What cannot be looked at because something nearer is broken is said to be skipped. What is looked at
is the work of those who bring the checks; other distributions bring theirs through the entry point
group `toolbus.checks`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

from toolbus.exit_codes import ExitCode

__all__ = ["CHECKS", "Ailment", "Check", "Finding", "Status", "examine"]

CHECKS = "toolbus.checks"
"""The entry point group of checks beyond a room's: async functions from a URL to findings."""
Patient = TypeVar("Patient")
Status: TypeAlias = Literal["ok", "warn", "fail", "skip"]
"""How a check ended; "warn" is what works now and may hurt later."""


class Ailment(Exception):
    """A check found something wrong.

    Args:
        found: What it is.
        repair: What to do about it.
        status: "warn" where things work nevertheless, "skip" where nobody may look.
        exit_code: In place of the check's own.
    """

    def __init__(
        self,
        found: str,
        repair: str,
        *,
        status: Status = "fail",
        exit_code: ExitCode | None = None,
    ) -> None:
        super().__init__(found)
        self.repair = repair
        self.status: Status = status
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    """The check's name."""
    status: Status
    """How it ended."""
    found: str
    """What is so, in words; they may be a stranger's."""
    repair: str = ""
    """What to do about it; "" where nothing is to be done."""
    exit_code: ExitCode = ExitCode.OK
    """How a command ends that found nothing worse before; `OK` unless it failed."""


@dataclass(frozen=True, slots=True)
class Check(Generic[Patient]):
    """One look, and what must be well for it to make sense."""

    name: str
    """What it is called, in at most 8 letters."""
    look: Callable[[Patient], Awaitable[str]]
    """Says what is so; raises `Ailment`."""
    exit_code: ExitCode
    """How a command ends where it fails."""
    needs: tuple[str, ...] = ()
    """The checks, which come earlier, that must be well before."""


async def examine(checks: Sequence[Check[Patient]], patient: Patient) -> list[Finding]:
    """Make every check that makes sense, in this order."""
    findings: list[Finding] = []
    causes: dict[str, str] = {}  # by the checks that are not well: what is to be repaired first
    for check in checks:
        missing = [causes[name] for name in check.needs if name in causes]
        if missing:
            finding = Finding(check.name, "skip", f"waits for {missing[0]}")
        else:
            finding = await _finding_of(check, patient)
        findings.append(finding)
        if finding.status not in ("ok", "warn"):
            causes[check.name] = missing[0] if missing else check.name
    return findings


async def _finding_of(check: Check[Patient], patient: Patient) -> Finding:
    try:
        return Finding(check.name, "ok", await check.look(patient))
    except Ailment as ailment:
        code = ailment.exit_code or check.exit_code
        ends = code if ailment.status == "fail" else ExitCode.OK
        return Finding(check.name, ailment.status, str(ailment), ailment.repair, ends)
