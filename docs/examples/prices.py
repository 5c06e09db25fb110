from toolbus import RemoteToolkit, tool

PRICES = {"pen": 2, "hat": 30}


@tool(read_only=True)
async def total(items: dict[str, int]) -> int:
    """Return what some items cost together: how many of each, by name."""
    return sum(PRICES[item] * count for item, count in items.items())


prices = RemoteToolkit(name="prices", tools=[total])
