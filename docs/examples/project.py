import asyncio
from pathlib import Path

from toolbus import ApprovalDecision, ApprovalRequest, Permissions, Rule, ToolUse, Turn
from toolbus_toolkits.shell import Shell

LINES = [
    "ls && wc -l notes.txt",
    "touch done.txt",
    "touch done.txt && sort notes.txt > sorted.txt",
    "rm -rf ~",
]


async def person(request: ApprovalRequest) -> ApprovalDecision:
    """Replace a person; `approve_in_terminal` asks a real one."""
    print("  asked:", request.decision.reason)
    return ApprovalDecision.deny("not now")


async def main(folder: Path) -> None:
    permissions = Permissions(rules=[Rule(behavior="allow", tool="shell.run", match="touch:*")])
    async with Turn(None, always=[Shell(folder)], permissions=permissions, approve=person) as turn:
        for line in LINES:
            print(line)
            (result,) = await turn.run([ToolUse("1", "shell.run", {"command": line})])
            print(" ", result.state)


project = Path("project")
project.mkdir(exist_ok=True)
(project / "notes.txt").write_text("b\na\n")
asyncio.run(main(project))
