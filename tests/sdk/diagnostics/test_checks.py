"""The order of checks, their preconditions and their results."""

from __future__ import annotations

from toolbus.diagnostics.checks import Check, CheckFailed, Finding, run_checks
from toolbus.diagnostics.exit_codes import ExitCode


async def ok(context: str) -> str:
    return f"ok in {context}"


async def fail(context: str) -> str:
    raise CheckFailed("broken", "repair it")


async def warn(context: str) -> str:
    raise CheckFailed("slow", "use a faster one", status="warn")


async def test_checks_run_in_their_order_with_the_context() -> None:
    checks = [Check("a", ok, ExitCode.USAGE), Check("b", ok, ExitCode.USAGE, ("a",))]
    assert await run_checks(checks, "here") == [
        Finding("a", "ok", "ok in here"),
        Finding("b", "ok", "ok in here"),
    ]


async def test_failed_check_has_its_repair_and_exit_code() -> None:
    (finding,) = await run_checks([Check("a", fail, ExitCode.REFUSED)], "")
    assert finding == Finding("a", "fail", "broken", "repair it", ExitCode.REFUSED)


async def test_warning_has_no_exit_code_and_skips_nothing() -> None:
    checks = [Check("a", warn, ExitCode.USAGE), Check("b", ok, ExitCode.USAGE, ("a",))]
    first, second = await run_checks(checks, "")
    assert (first.status, first.exit_code, second.status) == ("warn", ExitCode.OK, "ok")


async def test_skipped_checks_name_the_first_failed_check() -> None:
    checks = [
        Check("a", fail, ExitCode.USAGE),
        Check("b", ok, ExitCode.USAGE, ("a",)),
        Check("c", ok, ExitCode.USAGE, ("b",)),
        Check("d", ok, ExitCode.USAGE),
    ]
    findings = await run_checks(checks, "")
    assert [each.status for each in findings] == ["fail", "skip", "skip", "ok"]
    assert {each.found for each in findings if each.status == "skip"} == {"requires a"}
