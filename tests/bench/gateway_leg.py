"""The gateway between raw requests of MCP and a host: the door is the process that is compared."""

from __future__ import annotations

from bench import mcp_load, toolbus_leg
from bench.role import Facts, run_role, serve_orders
from toolbus_gateway.service import GatewayService, GatewaySettings


async def door(facts: Facts) -> None:
    service = GatewayService(GatewaySettings(url=facts["url"], port=0))
    await service.start()
    headers = {"Authorization": f"Bearer {facts['tokens']['caller']}"}
    url = f"{service.url}/rooms/{toolbus_leg.ROOM}/mcp"
    await serve_orders(door=url, tool="demo__add", headers=headers)
    await service.stop()


if __name__ == "__main__":
    run_role(
        {
            "router": toolbus_leg.route,
            "host": toolbus_leg.host,
            "door": door,
            "caller": mcp_load.caller,
        }
    )
