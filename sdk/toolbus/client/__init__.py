"""The caller's side of a connection: requests, calls, streams, retries and reconnecting."""
