import asyncio

from toolbus import (
    ApprovalDecision,
    ApprovalRequest,
    Assessment,
    Permissions,
    RoomClient,
    Rule,
    Toolkit,
    ToolUse,
    Turn,
    tool,
)


def assess(path: str) -> Assessment:
    """Say what a call would do; the function of the tool does not run."""
    words = f"it removes {path}"
    return Assessment("ask", message=words, suggestions=(Rule(behavior="allow", match="*.tmp"),))


def match_rule(pattern: str, path: str) -> bool:
    """Here a pattern is the end of a path, after a star."""
    return path.endswith(pattern.removeprefix("*"))


@tool(destructive=True, assess=assess, match_rule=match_rule)
async def remove(path: str) -> str:
    """Remove a file."""
    return f"removed {path}"


@tool(read_only=True)
async def read(path: str) -> str:
    """Read a file."""
    return f"text of {path}"


async def person(request: ApprovalRequest) -> ApprovalDecision:
    """Replace a person; `approve_in_terminal` asks a real one."""
    print("asked:", request.assessment.message)
    if not request.arguments["path"].endswith(".tmp"):
        return ApprovalDecision.deny("I need that file")
    return ApprovalDecision.allow("state", rule=request.decision.suggestions[0])


files = Toolkit("files", [read, remove])
permissions = Permissions(rules=[Rule(behavior="deny", tool="files", match="/etc/passwd")])


async def main() -> None:
    paths = ["a.tmp", "b.tmp", "report.txt", "/etc/passwd"]
    uses = [ToolUse("0", "files.read", {"path": "a.tmp"})]
    uses += [ToolUse(path, "files.remove", {"path": path}) for path in paths]
    async with (
        RoomClient(name="agent") as room,
        Turn(room, always=[files], permissions=permissions, approve=person) as turn,
    ):
        for result in await turn.run(uses):
            print(result.state, result.for_model())
        assert turn.permissions is not None
        print("granted:", *(str(rule) for rule in turn.permissions.granted))


if __name__ == "__main__":
    asyncio.run(main())
