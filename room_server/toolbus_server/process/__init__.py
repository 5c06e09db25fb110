"""The server as a process: `toolbus serve`, `toolbus key`, workers."""
