"""The toolkit stock: counts what is in stock. Put your own tools in place of these."""

from toolbus import ToolFailed, Toolkit, tool

ITEMS = {"pen": 3, "hat": 1}


@tool(read_only=True)
async def count(item: str) -> int:
    """Return how many of an item there are.

    Args:
        item: The name of the item.
    """
    if item not in ITEMS:
        raise ToolFailed(f"there is no {item}, only {', '.join(ITEMS)}")
    return ITEMS[item]


@tool
async def add(item: str, number: int = 1) -> int:
    """Add some of an item, and return how many of it there are then.

    Args:
        item: The name of the item.
        number: How many are added.
    """
    ITEMS[item] = ITEMS.get(item, 0) + number
    return ITEMS[item]


toolkit = Toolkit(
    "stock",
    [count, add],
    description="Counts what is in stock.",
)
