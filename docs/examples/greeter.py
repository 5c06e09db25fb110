from mcp.server import MCPServer

server = MCPServer("greeter")


@server.tool(structured_output=False)
def greet(name: str) -> str:
    """Greet somebody."""
    return f"hello {name}"


if __name__ == "__main__":
    server.run()
