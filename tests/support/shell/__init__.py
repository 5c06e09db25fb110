"""Command lines: a folder to judge them in, what must be decided, and a sandbox that runs them."""
