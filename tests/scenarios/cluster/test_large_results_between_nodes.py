"""Large results of a host at another node, over a slow connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from support.nodes.cluster import until_listed
from support.redis.server import redis_server
from support.rooms.large_results import MANY_LARGE, SLOW, arrives, raw_host, sdk_host
from toolbus_server.testing import FaultProxy, TestServer, running_nodes


@pytest.mark.parametrize(("count", "size"), MANY_LARGE)
@pytest.mark.parametrize("hosting", [sdk_host, raw_host])
async def test_a_slow_caller_gets_every_large_result_of_another_node(
    hosting: Callable[[TestServer], Any], count: int, size: int
) -> None:
    """CALL-28, STREAM-11."""
    async with redis_server() as redis, running_nodes(redis.url) as (here, there):
        async with FaultProxy(here.url) as proxy, here.room("ann", via=proxy) as ann:
            async with hosting(there):
                await until_listed(ann, "echo")
                proxy.to_participant = SLOW
                assert all(await asyncio.gather(*(arrives(ann, n, size) for n in range(count))))
