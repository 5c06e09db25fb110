import asyncio
from pathlib import Path

from toolbus import ApprovalDecision, ApprovalRequest, Permissions, ToolUse, Turn
from toolbus_toolkits.codegen import Codegen
from toolbus_toolkits.files import Files


async def person(request: ApprovalRequest) -> ApprovalDecision:
    """Replace a person; `approve_in_terminal` asks a real one, and shows the files."""
    print("asked:", request.assessment.message)
    return ApprovalDecision.allow()


async def main(folder: Path) -> None:
    files = Files(folder)
    async with Turn(
        None, always=[files, Codegen(files)], permissions=Permissions(), approve=person
    ) as turn:
        new = {"target": "tool", "name": "clip", "path": "tools"}
        (result,) = await turn.run([ToolUse("1", "codegen.write", new)])
        program, test = result.value["files"]
        edit = {
            "path": program["path"],
            "token": program["token"],
            "old_text": "longest: int = 40",
            "new_text": "longest: int = 20",
        }
        await turn.run([ToolUse("2", "files.edit", edit)])
        print("written:", program["path"], test["path"])


asyncio.run(main(Path()))
