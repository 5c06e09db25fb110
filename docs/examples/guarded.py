import asyncio

from toolbus import InvalidArguments, ToolContext, Toolkit
from toolbus_toolkits.guards import InputGuard, OutputGuard


async def read(path: str) -> str:
    """Read a file."""
    return f"the content of {path}"


async def settings() -> dict[str, str]:
    """Return settings."""
    return {"region": "north", "key": "AKIA" + "ABCDEFGHIJKLMNOP"}


files = Toolkit("files", [read, settings], middlewares=[InputGuard(), OutputGuard()])


async def main() -> None:
    try:
        await files.execute(ToolContext(), "read", {"path": "../secrets"})
    except InvalidArguments as error:
        print(error)
    print((await files.execute(ToolContext(), "settings", {})).value)


asyncio.run(main())
