"""The name of `toolbus.agents` before 0.1; it says so until 0.2."""

raise ImportError(
    "toolbus.conversations is now toolbus.agents, and what was toolbus.agents is now toolbus.turns"
)
