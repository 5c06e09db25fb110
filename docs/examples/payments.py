from toolbus import Toolkit, tool


@tool(approval=True)
async def pay(to: str, amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


payments = Toolkit("payments", [pay])
