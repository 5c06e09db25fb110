from toolbus import ExternalTool, ToolContext, Toolkit, tool


@tool
async def order(context: ToolContext, item: str) -> str:
    """Order an item."""
    size = await context.ask(f"Which size of {item}?", options=["small", "large"])
    return f"ordered {item}, {size}"


review = ExternalTool(
    "review",
    {"properties": {"text": {"type": "string"}}, "required": ["text"]},
    description="Have a person review a text, and mark it with 1 to 5.",
    output_schema={"type": "integer", "minimum": 1, "maximum": 5},
)
desk = Toolkit("desk", [order, review])
