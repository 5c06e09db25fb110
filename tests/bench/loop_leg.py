"""One process: a fixed loop of Python, which tells how fast the machine is."""

from __future__ import annotations

from typing import Any

from bench.role import Facts, keep_calling, run_role, serve_orders

LOOPS = 8_000
"""They take 1 ms on the machine for which the musts were written."""


async def loop(_a: int, _b: int) -> dict[str, Any]:
    """Count the characters of words."""
    counts: dict[str, int] = {}
    for number in range(LOOPS):
        word = str(number % 100)
        counts[word] = counts.get(word, 0) + len(word)
    return counts


async def caller(_facts: Facts) -> None:
    """Run the loop again and again."""

    async def call(seconds: float, in_flight: int) -> Facts:
        return await keep_calling(loop, seconds, in_flight)

    await serve_orders({"call": call}, ready=True)


if __name__ == "__main__":
    run_role({"caller": caller})
