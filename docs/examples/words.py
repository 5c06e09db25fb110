from collections import Counter

from toolbus import RemoteToolkit, tool


@tool(read_only=True, idempotent=True)
async def count(text: str, top: int = 3) -> dict[str, int]:
    """Count the words of a text, the most frequent first."""
    return dict(Counter(text.lower().split()).most_common(top))


words = RemoteToolkit(name="words", tools=[count])

if __name__ == "__main__":
    words.run()
