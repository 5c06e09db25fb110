"""toolbus for programs without an event loop: each method waits for its result.

`from toolbus.sync import RoomClient`: what it does is what `toolbus.RoomClient` does, on an event
loop of its own thread.
"""

from toolbus.sync.results import Chunk, FileChunk, Stream
from toolbus.sync.room_client import RoomClient, ToolkitProxy

__all__ = ["Chunk", "FileChunk", "RoomClient", "Stream", "ToolkitProxy"]
