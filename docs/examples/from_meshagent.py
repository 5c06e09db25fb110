import asyncio

from toolbus import FileChunk, Tool, ToolContext, Toolkit


class Size(Tool):
    name = "size"
    description = "Measure a file."
    input_schema = {  # noqa: RUF012
        "properties": {"unit": {"enum": ["bytes", "bits"]}},
        "required": ["unit"],
    }

    async def execute(self, context: ToolContext, /, unit: str, attachment: FileChunk) -> int:
        context.emit({"caller": context.caller.name})
        length = len(await attachment.read())
        return 8 * length if unit == "bits" else length


files = Toolkit("files", [Size()], rules=["Measure before you send."])


async def main() -> None:
    context = ToolContext(on_progress=print)
    chunk = await files.execute(context, "size", {"unit": "bits"}, attachment=b"to be")
    print(chunk.value)


asyncio.run(main())
