import sqlite3
from dataclasses import dataclass
from typing import Any

from toolbus import RemoteToolkit, RoomClient, Tool, ToolContext, ToolFailed, tool


@dataclass
class Item:
    name: str
    price: float


PRICES = {"pen": 1.5, "ink": 7.0}


@tool(read_only=True, idempotent=True, timeout_s=5, rules=["Names are in the singular."])
def price(item: str) -> Item:
    """Look up the price of an item.

    Args:
        item: Name of the item, such as "pen".
    """
    if item not in PRICES:
        raise ToolFailed(f"there is no {item!r}; there are {', '.join(PRICES)}")
    return Item(item, PRICES[item])


class Order(Tool):
    """Keep orders in a database that is open while the toolkit is hosted."""

    name = "order"
    description = "Order an item."
    input_schema = {  # noqa: RUF012
        "properties": {"item": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
        "required": ["item", "count"],
    }

    async def start(self, room: RoomClient) -> None:
        self.db = sqlite3.connect(":memory:")
        self.db.execute("CREATE TABLE orders (customer, item, count)")

    async def stop(self) -> None:
        self.db.close()

    async def execute(self, context: ToolContext, /, item: str, count: int) -> dict[str, Any]:
        row = (context.caller.full_name, item, count)
        number = self.db.execute("INSERT INTO orders VALUES (?, ?, ?)", row).lastrowid
        return {"order": number, "for": context.caller.full_name}


shop = RemoteToolkit(
    "shop",
    [price, Order()],
    description="Prices and orders of a stationery shop.",
    rules=["Ask for the price before you order."],
)

if __name__ == "__main__":
    shop.run()
