import asyncio
from pathlib import Path

from toolbus import ApprovalDecision, ApprovalRequest, Permissions, ToolUse, Turn
from toolbus_toolkits.shell import Shell

LINES = ["sh build.sh", "cat ../private.txt", "echo x > /usr/x", "cat .env"]


async def person(request: ApprovalRequest) -> ApprovalDecision:
    """Replace a person, who allows all but secrets."""
    if ".env" in str(request.arguments):
        return ApprovalDecision.deny("not my passwords")
    return ApprovalDecision.allow()


async def main(folder: Path) -> None:
    shell = Shell(folder, sandbox="auto")
    permissions = Permissions("accept_edits")
    async with Turn(None, always=[shell], permissions=permissions, approve=person) as turn:
        for line in LINES:
            print(line)
            (result,) = await turn.run([ToolUse("1", "shell.run", {"command": line})])
            if result.error:
                print(" ", result.state)
            else:
                print(" ", result.value["exit"], result.value["stdout"] or result.value["stderr"])


app = Path("app")
app.mkdir(exist_ok=True)
(app / "build.sh").write_text("echo built > report.txt && cat report.txt\n")
(app / ".env").write_text("PASSWORD=secret\n")
Path("private.txt").write_text("private\n")
asyncio.run(main(app))
