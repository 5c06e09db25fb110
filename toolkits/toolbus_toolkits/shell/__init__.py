"""Commands of bash as a toolkit: `run`, and jobs in the background.

The way of a call: `tools.ShellTools.run` is asked for its assessment first, where permissions or a
policy judge it. `reading` reads the line as bash does, `commands` says what each simple command
does, and `assessing` makes one `Assessment` of that, with `workspace` for the paths. Then the line
runs as `bash --noprofile --norc -c LINE`, started by `launcher`; what it writes is kept in `jobs`.

Reading a command is no sandbox: what runs may do whatever its user may.
"""

from __future__ import annotations

from toolbus import Toolkit
from toolbus_toolkits.shell.config import ShellConfig
from toolbus_toolkits.shell.tools import RunResult, ShellTools

__all__ = ["RunResult", "ShellConfig", "ShellTools", "shell"]


def shell(config: ShellConfig) -> Toolkit:
    """Commands of bash: `run`, and jobs in the background.

    It is a factory: `toolbus host shell --workdir PATH` hosts it, and
    `builder_of(shell, workdir=...)` offers it to agents.

    Args:
        config: Where commands run, and the limits of one call.
    """
    tools = ShellTools(config.workdir)
    return Toolkit(
        name="shell",
        title="Shell",
        description="Runs commands with bash.",
        tools=[tools.run],
    )
