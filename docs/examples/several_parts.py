import asyncio

from toolbus import Assessment, Permissions, Rule, ToolContext, Toolkit, ToolUse, Turn, tool


def assess(context: ToolContext, line: str) -> Assessment:
    """Say which patterns match each command of a line; here a pattern is its first word."""
    commands = [command.split()[0] for command in line.split("&&")]
    parts = [tuple(each for each in context.patterns if each == word) for word in commands]
    return Assessment("pass", parts=tuple(parts))


@tool(assess=assess)
async def run(line: str) -> str:
    """Run a line of commands."""
    return f"ran {line}"


rules = [Rule(behavior="allow", tool="lines", match=word) for word in ("git", "npm")]
rules.append(Rule(behavior="deny", tool="lines", match="rm"))


async def main() -> None:
    permissions = Permissions("dont_ask", rules)
    lines = ["git add . && npm test", "git add . && make", "git add . && rm notes"]
    uses = [ToolUse(line, "lines.run", {"line": line}) for line in lines]
    async with Turn(None, always=[Toolkit("lines", [run])], permissions=permissions) as turn:
        for result in await turn.run(uses):
            print(result.error.message if result.error else result.for_model())


if __name__ == "__main__":
    asyncio.run(main())
