"""What is known about commands: which of their options only read, and what the others do.

`effect_of` is the one question. `table` says how a command is described, and the other modules are
the descriptions, by area. A command, an option or an argument that is not described counts as
unknown: then the command is asked about.
"""

from __future__ import annotations

from toolbus_toolkits.shell.commands.effects import Effect
from toolbus_toolkits.shell.commands.registry import effect_of

__all__ = ["Effect", "effect_of"]
