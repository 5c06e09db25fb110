import asyncio
from pathlib import Path

from toolbus import ApprovalDecision, ApprovalRequest, Permissions, ToolUse, Turn
from toolbus_toolkits.files import Files

USES = [
    ("read", {"path": "shop/prices.py"}),
    ("edit", {"path": "shop/prices.py", "old_text": "0.20", "new_text": "0.25"}),
    ("write", {"path": "shop/stock.py", "text": "STOCK = 3\n"}),
    ("read", {"path": "shop/.env"}),
    ("read", {"path": "/etc/hostname"}),
]


async def person(request: ApprovalRequest) -> ApprovalDecision:
    """Replace a person; `approve_in_terminal` asks a real one, and shows the diff in colors."""
    print("  asked:", request.assessment.message)
    print(request.assessment.preview)
    if request.assessment.immune:
        return ApprovalDecision.deny("keep out")
    return ApprovalDecision.allow()


async def main(folder: Path) -> None:
    async with Turn(
        None, always=[Files(folder)], permissions=Permissions(), approve=person
    ) as turn:
        for name, arguments in USES:
            print(name, arguments["path"])
            (result,) = await turn.run([ToolUse("1", f"files.{name}", arguments)])
            print(" ", result.state)


shop = Path("shop")
shop.mkdir(exist_ok=True)
(shop / "prices.py").write_text("PRICE = 8.0\nTAX = 0.20\n")
(shop / ".env").write_text("KEY=secret\n")
asyncio.run(main(Path()))
