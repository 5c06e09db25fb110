"""What toolkits with commands have in common: their tools share what goes on between calls."""

from __future__ import annotations

from typing import Any

from toolbus import FunctionTool
from toolbus_toolkits.launcher.command_sandbox import CommandSandbox

__all__ = ["CommandTool", "CommandTools"]


class CommandTools:
    """The tools of one toolkit, whose commands may go on between calls."""

    sandbox: CommandSandbox | None = None
    """What confines the commands, if anything does."""
    started: int = 0
    """How many of the tools are started."""

    async def probe(self) -> None:
        """Raise `SandboxUnavailable` if nothing confines the commands as they have to be."""
        if self.sandbox is not None:
            await self.sandbox.probe()

    async def end_all(self) -> None:
        """End what goes on."""
        raise NotImplementedError


class CommandTool(FunctionTool):
    """A tool with commands: with the last one of its toolkit that stops, what goes on ends."""

    group: CommandTools

    async def start(self, room: Any) -> None:
        """Count it: `stop` of the last one ends what goes on.

        Raises `SandboxUnavailable` if nothing confines commands as they have to be.
        """
        await self.group.probe()
        self.group.started += 1

    async def stop(self) -> None:
        """End what goes on, if no other tool of the toolkit is started."""
        self.group.started -= 1
        if not self.group.started:
            await self.group.end_all()
