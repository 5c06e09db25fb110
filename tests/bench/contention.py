"""How much of the processor other programs took while the bench ran: why figures may be poor."""

from __future__ import annotations

import os
import time

import psutil


class Contention:
    """Watches from its construction on."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._others_s = _others_s()
        self._stolen_s = _stolen_s()

    def __str__(self) -> str:
        capacity_s = (time.monotonic() - self._started) * (psutil.cpu_count() or 1)
        others = (_others_s() - self._others_s) / capacity_s
        stolen = (_stolen_s() - self._stolen_s) / capacity_s
        return (
            f"other programs took {max(0.0, others):.0%} of the cores, other machines {stolen:.0%}"
        )


def _others_s() -> float:
    # Ours is what this process and its children, that have ended, have spent.
    times = psutil.cpu_times()
    interrupts = getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0)
    everybody_s: float = times.user + times.system + getattr(times, "nice", 0.0) + interrupts
    return everybody_s - sum(os.times()[:4])


def _stolen_s() -> float:
    stolen_s: float = getattr(psutil.cpu_times(), "steal", 0.0)
    return stolen_s
