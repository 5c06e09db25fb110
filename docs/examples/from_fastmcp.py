from toolbus import RemoteToolkit, ToolContext, tool


@tool(read_only=True)
def add(context: ToolContext, a: int, b: int) -> int:
    """Add two numbers."""
    context.emit({"done": 0.5})
    return a + b


calculator = RemoteToolkit("calculator", [add])

if __name__ == "__main__":
    calculator.run()
