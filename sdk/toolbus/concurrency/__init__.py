"""Event loop, tasks, timers and threads."""
