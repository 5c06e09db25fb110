import asyncio
from pathlib import Path

from toolbus import ApprovalDecision, ApprovalRequest, Permissions, ToolUse, Turn
from toolbus_toolkits.python import Python

STEPS = [
    "import csv\nrows = list(csv.DictReader(open('sales.csv')))\nlen(rows)",
    "sum(float(row['price']) for row in rows)",
    "max(rows, key=lambda row: row['cost'])",
]


async def person(request: ApprovalRequest) -> ApprovalDecision:
    """Replace a person; `approve_in_terminal` asks a real one."""
    print("asked:", request.decision.reason)
    return ApprovalDecision.allow()


async def main(folder: Path) -> None:
    toolkit = Python(folder, sandbox="auto")
    permissions = Permissions()
    async with Turn(None, always=[toolkit], permissions=permissions, approve=person) as turn:
        for code in STEPS:
            (result,) = await turn.run([ToolUse("1", "python.run", {"code": code, "keep": True})])
            print(result.value["value"] or result.value["error"].splitlines()[-1])


sales = Path("sales")
sales.mkdir(exist_ok=True)
(sales / "sales.csv").write_text("item,price\npen,2.5\nbook,12\n")
asyncio.run(main(sales))
