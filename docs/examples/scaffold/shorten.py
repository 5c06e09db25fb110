"""The tool shorten. `Toolkit("texts", [run])` is a toolkit that has it."""

from toolbus import ToolFailed, tool


@tool(
    name="shorten",
    read_only=True,
)
async def run(text: str, longest: int = 40) -> str:
    """Shorten a text to its first words.

    Args:
        text: The text.
        longest: How many characters are left at most.
    """
    if longest < 1:
        raise ToolFailed("longest must be 1 or more")
    if len(text) <= longest:
        return text
    shortened = text[: longest + 1].rpartition(" ")[0]
    return shortened or text[:longest]
