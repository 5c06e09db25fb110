"""Choosing a host costs a call no more if there are many."""

from __future__ import annotations

from collections import Counter

import pytest

from support.parts.models import participant
from toolbus_server.registry import models
from toolbus_server.registry.models import HostChoice

HOSTS = [participant("host", str(number)) for number in range(100)]


def test_each_group_of_affinity_keys_weighs_the_hosts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """CALL-23."""
    weigh, weighed = models._weight, list[str]()

    def counted(slot: int, instance: str) -> bytes:
        weighed.append(instance)
        return weigh(slot, instance)

    monkeypatch.setattr(models, "_weight", counted)
    monkeypatch.setattr(models, "AFFINITY_SLOTS", 8)
    choice = HostChoice(HOSTS)
    for number in range(1_000):
        choice.by_affinity(f"customer-{number}")
    assert len(weighed) == 8 * len(HOSTS)


def test_affinity_keys_spread_over_all_hosts() -> None:
    choice = HostChoice(HOSTS)
    counts = Counter(choice.by_affinity(str(number)).instance for number in range(20_000))
    assert len(counts) == len(HOSTS)
    assert max(counts.values()) < 2 * 20_000 / len(HOSTS)
