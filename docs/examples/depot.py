import logging

from toolbus import RemoteToolkit, tool

logger = logging.getLogger(__name__)


@tool(read_only=True)
def stored(item: str) -> int:
    """Count how many of an item are stored."""
    logger.info("counting %s", item)
    return len(item)


depot = RemoteToolkit(name="depot", tools=[stored])

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    depot.run()
