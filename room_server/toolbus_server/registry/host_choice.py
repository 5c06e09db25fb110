"""Chooses among the hosts of one generation: by load, or the same one for each affinity key.

Pure. A choice is made for a set of hosts; when that changes, another one replaces it. The cost of a
call does not grow with the number of hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import Generic, Protocol, TypeVar

__all__ = ["AFFINITY_SLOTS", "Host", "HostChoice"]

AFFINITY_SLOTS = 16_384
"""How many groups the affinity keys of one toolkit form; the keys of a group have one host."""


class Host(Protocol):
    """What the choice of a host depends on."""

    instance: str
    in_flight: int
    is_remote: bool
    node_is_draining: bool


H = TypeVar("H", bound=Host)


class HostChoice(Generic[H]):
    """The choice among a set of hosts.

    Args:
        hosts: The hosts; at least one. Those at draining nodes are the last choice.
    """

    __slots__ = ("_by_slot", "_hosts", "_near")

    def __init__(self, hosts: Sequence[H]) -> None:
        self._hosts = [host for host in hosts if not host.node_is_draining] or list(hosts)
        self._near = [host for host in self._hosts if not host.is_remote] or self._hosts
        self._by_slot: dict[int, H] = {}

    def by_load(self, random: Random) -> H:
        """Choose, of two hosts drawn at random, the one with fewer calls; at this node if any."""
        near = self._near
        if len(near) == 1:
            return near[0]
        first, second = random.sample(near, 2)
        return first if first.in_flight <= second.in_flight else second

    def by_affinity(self, key: str) -> H:
        """Choose the host of an affinity key: the same one at every node, while the set lasts."""
        slot = int.from_bytes(blake2b(key.encode(), digest_size=2).digest()) % AFFINITY_SLOTS
        host = self._by_slot.get(slot)
        if host is None:
            host = max(self._hosts, key=lambda candidate: _weight(slot, candidate.instance))
            self._by_slot[slot] = host
        return host


def _weight(slot: int, instance: str) -> bytes:
    """Weigh a host for a slot: the host with the highest weight gets its calls.

    When a host leaves, only its own slots move (rendezvous hashing, Thaler and Ravishankar 1998).
    """
    return blake2b(f"{instance}\0{slot}".encode(), digest_size=8).digest()
