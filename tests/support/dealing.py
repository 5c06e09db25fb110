"""Deals tests to workers as `--dist loadfile` does, but a file may come in several stretches.

So those tests of a file that run alone come when all others have begun, and keep nobody waiting.
"""

from __future__ import annotations

from itertools import groupby

from xdist.scheduler import LoadFileScheduling

__all__ = ["StretchScheduling"]


class StretchScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
    """Gives a worker one stretch after the other: tests of one file that follow each other."""

    _stretches: dict[str, str] | None = None

    def schedule(self) -> None:
        """Deal what all workers have collected."""
        if self._stretches is None:
            collected = next(iter(self.registered_collections.values()))
            stretches = enumerate(groupby(collected, super()._split_scope))
            self._stretches = {
                test: f"{file} {number}" for number, (file, tests) in stretches for test in tests
            }
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        assert self._stretches is not None
        return self._stretches[nodeid]
