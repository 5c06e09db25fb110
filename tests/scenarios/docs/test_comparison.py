"""The figures that README compares are those of tests/bench/RESULTS.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("load", ["one at a time", "64 in flight"])
def test_readme_compares_measured_rates(load: str) -> None:
    results = (ROOT / "tests/bench/RESULTS.md").read_text(encoding="utf-8")
    measured = {
        leg: re.search(rf"\| {group} \| {leg} \| {load} \| ([\d,]+) calls/s", results)
        for group, leg in (("calls", "toolbus"), ("rivals", "fastmcp"), ("calls", "nats"))
    }
    rates = [rate and rate[1] for rate in measured.values()]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"| calls/s, {load} | {' | '.join(map(str, rates))} |" in readme
