"""The bus in a room with many toolkits: beside ours, others that nobody calls.

Their hosts are participants in a process of their own, as few as the server's limit on toolkits
allows; they stay, answer pings and do nothing else. How many toolkits the room has, ours among
them, `BENCH_TOOLKITS` says.
"""

from __future__ import annotations

import os
from typing import Any

from bench.guest import Guest, Invitation
from bench.role import Where, run_role, serve_until_told
from bench.toolbus_leg import ROOM, add, caller, host, route
from toolbus import Toolkit
from toolbus_server.limits import Limits

REGISTER_TIMEOUT_S = 50.0


async def neighbours(where: Where) -> None:
    """Host all toolkits but one, then say so."""
    names = [f"idle{number}" for number in range(int(os.environ["BENCH_TOOLKITS"]) - 1)]
    most, alike = Limits().max_toolkits, manifest()
    for start in range(0, len(names), most):
        token = where["neighbour_token"]
        invitation = Invitation.to(where["url"], ROOM, token, instance=f"host{start}")
        guest = await Guest.join(invitation)
        manifests = [{**alike, "name": name} for name in names[start : start + most]]
        await guest.register(manifests, REGISTER_TIMEOUT_S)
    await serve_until_told(ready=True)


def manifest() -> dict[str, Any]:
    """What a host says of a toolkit like ours."""
    return Toolkit(ROOM, [add]).manifest().model_dump(mode="json", exclude_defaults=True)


if __name__ == "__main__":
    run_role({"router": route, "neighbours": neighbours, "host": host, "caller": caller})
