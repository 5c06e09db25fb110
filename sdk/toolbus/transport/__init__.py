"""A websocket connection for frames: framing, batched writes and a bounded send queue."""
