"""Commands of bash as a toolkit: `run`, and jobs in the background.

The way of a call: `tools.ShellTools.run` is asked for its assessment first, where permissions or a
policy judge it. `reading` reads the line as bash does, `commands` says what each simple command
does, and `assessing` makes one `Assessment` of that, with `workspace` for the paths. Then the line
runs as `bash --noprofile --norc -c LINE`, started by `launcher`; what it writes is kept in `jobs`.

Reading a command is no sandbox: what runs may do whatever its user may, unless the toolkit has one.
Then `launcher.command_sandbox` says what each command may reach, and which judgements count on it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolbus import Toolkit
from toolbus.bounded_logging import bounded_logger
from toolbus.public_names import missing
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.sandbox import SandboxConfig, SandboxPolicy, summary
from toolbus_toolkits.shell.config import ShellConfig
from toolbus_toolkits.workspace import Roots

try:
    from toolbus_toolkits.shell.tools import (
        CommandResult,
        ConfinedResult,
        JobInfo,
        JobPage,
        ShellTools,
        WriteResult,
    )
except ModuleNotFoundError as error:
    if error.name in ("tree_sitter", "tree_sitter_bash"):
        raise ModuleNotFoundError(
            "the toolkit shell needs more packages: pip install 'toolbus[shell]'", name=error.name
        ) from error
    raise

if TYPE_CHECKING:
    from toolbus import Middleware, Permissions, Records

__all__ = [
    "CommandResult",
    "ConfinedResult",
    "JobInfo",
    "JobPage",
    "Shell",
    "ShellConfig",
    "WriteResult",
    "shell",
]

_logger = bounded_logger(__name__)


if not TYPE_CHECKING:  # for checkers it has no such name

    def __getattr__(name: str) -> Any:
        raise missing(sys.modules[__name__], name)


class Shell(Toolkit):
    """Commands of bash: `run`, and jobs in the background.

    Several turns, and a host, may share one object; with the last of them its jobs end.

    Args:
        workdir: The folder that commands start in, and may change files of.
        keep: Keep the directory and the exported variables between calls of a caller.
        env: Variables that commands get, beside PATH, HOME and such.
        inherit: Names of variables of this process that commands get, such as `SSH_AUTH_SOCK`.
        sandbox: What confines commands: a `SandboxConfig`, the name of a backend, such as "auto",
            or what a `SandboxPolicy` recommends for `run`. They may change the working
            directories; without it, what their user may.
        network: Whether confined commands may use the network.
        additional_dangerous_files: Further files that a person decides about, with `*` and `?`.
        additional_dangerous_directories: Further folders that a person decides about.
        max_jobs: Background jobs of one caller that run at a time.
        max_memory_mib: Address space of each process; None means unlimited.
        max_cpu_s: Seconds of processor time of each process; None means unlimited.
        max_file_mib: The largest file that a process may write; None means unlimited.
        name: The name of the toolkit.
        middlewares: As those of a `Toolkit`.
        records: As those of a `Toolkit`.
        policy: As that of a `Toolkit`. Without one, all its callers may run any command.

    Raises `ValueError` if the folder does not exist, for a variable of toolbus, for a limit that is
    out of range, for `network` beside a policy, and where there is no bash. Where nothing confines
    as `sandbox` asks, it does not start: that is a `SandboxUnavailable`, whose message says what to
    install or to allow.
    """

    def __init__(  # noqa: PLR0913 - a toolkit's options, and those of its config
        self,
        workdir: str | PathLike[str] = ".",
        *,
        keep: bool = False,
        env: Mapping[str, str] | None = None,
        inherit: Iterable[str] = (),
        sandbox: SandboxConfig | SandboxPolicy | str | bool | None = None,
        network: bool = False,
        additional_dangerous_files: Iterable[str] = (),
        additional_dangerous_directories: Iterable[str] = (),
        max_jobs: int = 16,
        max_memory_mib: int | None = None,
        max_cpu_s: int | None = None,
        max_file_mib: int | None = None,
        name: str = "shell",
        middlewares: Iterable[Middleware] = (),
        records: Records | None = None,
        policy: Permissions | None = None,
    ) -> None:
        max_timeout_s = None
        if isinstance(sandbox, SandboxPolicy):
            if network:
                raise ValueError("write the network into the config or a profile of the policy")
            sandbox, max_timeout_s = sandbox.recommend_command(f"{name}.run")
        # As they are given: of a text, `tuple` would make its letters.
        options: dict[str, Any] = {
            "workdir": Path(workdir),
            "keep": keep,
            "env": dict(env or {}),
            "inherit": inherit,
            "sandbox": sandbox,
            "network": network,
            "additional_dangerous_files": additional_dangerous_files,
            "additional_dangerous_directories": additional_dangerous_directories,
            "max_jobs": max_jobs,
            "max_memory_mib": max_memory_mib,
            "max_cpu_s": max_cpu_s,
            "max_file_mib": max_file_mib,
        }
        config = ShellConfig.model_validate(options)
        session_rule = (
            "The directory and exported variables are kept for your next call, and nothing else."
            if keep
            else "Each call starts a new bash in the same folder: write `cd FOLDER && COMMAND`."
        )
        tools = ShellTools(config, name, max_timeout_s)
        self._sandbox = tools.sandbox
        super().__init__(
            name,
            tools.all,
            title="Shell",
            description="Runs command lines with bash, in the foreground or as jobs.",
            rules=[
                "A command line is read by bash, without profile and without input: pass options"
                " that keep a program from asking.",
                session_rule,
                "Where a result has `truncated`, `read` its `job` for the part that is left out.",
                "Run what does not end by itself, such as a server, with `background`; look at its"
                " output with `read`, and `stop` it when it is not needed any more.",
                *_rules_of_sandbox(config.confinement),
            ],
            middlewares=middlewares,
            records=records,
            policy=policy,
        )
        self.workdirs = Roots([config.workdir]).folders

    @asynccontextmanager
    async def hosting(self, room: Any) -> AsyncIterator[None]:
        """Say what confines commands, and warn where nothing limits what callers run."""
        confined = ""
        if self._sandbox is not None:
            backend = await self._sandbox.probe()
            confined = summary(backend)
            if backend in ("bubblewrap", "landlock") and (hidden := self._sandbox.hidden_path()):
                confined += f"; not shown of PATH: {one_line(', '.join(hidden), SHOWN_CHARS)}"
        if not self.policies:
            _logger.warning(
                "toolkit %s has no policy: whoever may call it runs any command as the user of"
                " this process%s; `toolbus host --policy FILE` limits that",
                self.name,
                f", {confined}" if confined else "",
            )
        elif confined:
            _logger.warning("commands of toolkit %s: %s", self.name, confined)
        yield


def _rules_of_sandbox(sandbox: SandboxConfig | None) -> list[str]:
    """Return what a model has to know of the sandbox that its commands run in."""
    if sandbox is None or sandbox.backend == "subprocess":
        return []
    network = "may use the network" if sandbox.network else "have no network"
    return [
        f"Commands are confined: they change files in the working directories only, {network}, and"
        " find the home and `/tmp` empty. `Permission denied` and `Read-only file system` may mean"
        " that; do not try to get around it, but say what is needed."
    ]


def shell(config: ShellConfig) -> Toolkit:
    """Commands of bash: `run`, and jobs in the background.

    It is a factory: `toolbus host shell --workdir PATH` hosts it, and
    `builder_of(shell, workdir=...)` offers it to agents, each turn of which has jobs of its own.

    Args:
        config: Where commands run, and the limits of one call.
    """
    return Shell(**dict(config))
