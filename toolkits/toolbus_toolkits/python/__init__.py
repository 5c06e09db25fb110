"""Python code as a toolkit: `run` and `reset`.

The way of a call: permissions or a policy ask `tools.PythonTools` for an assessment first, which
has the code as its preview. `run` then starts the interpreter of the operator by `launcher`, in its
sandbox if it has one, with the text of `runner.py` as its program. `interpreter` is what this
process has of it: code goes to the runner through a socket, and its value or traceback comes back
there; what it prints comes through its pipes into `launcher.output`. `written` looks for files of
the working directory that were changed since the start, and reads them. `tools` makes one result of
all of it. With `keep`, `sessions` has the interpreter between the calls of an asker.
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
from toolbus_toolkits.python.config import PythonConfig
from toolbus_toolkits.python.tools import (
    CodeResult,
    ConfinedCodeResult,
    PythonTools,
    ResetResult,
)
from toolbus_toolkits.sandbox import SandboxConfig, SandboxPolicy, summary
from toolbus_toolkits.workspace import Roots

if TYPE_CHECKING:
    from toolbus import Middleware, Permissions, Records

__all__ = [
    "CodeResult",
    "ConfinedCodeResult",
    "Python",
    "PythonConfig",
    "ResetResult",
    "python",
]

_logger = bounded_logger(__name__)


if not TYPE_CHECKING:  # for checkers it has no such name

    def __getattr__(name: str) -> Any:
        raise missing(sys.modules[__name__], name)


class Python(Toolkit):
    """Python code: `run`, in an interpreter that ends with the call or stays, and `reset`.

    Several turns, and a host, may share one object; with the last of them its interpreters end.

    Args:
        workdir: The folder that code starts in, and may change files of.
        interpreter: The Python that runs code, such as `.venv/bin/python`; by default that which
            runs toolbus.
        env: Variables that code gets, beside PATH, HOME and such.
        inherit: Names of variables of this process that code gets.
        sandbox: What confines code: a `SandboxConfig`, the name of a backend, such as "auto", or
            what a `SandboxPolicy` recommends for `run`. It may change the working directories;
            without it, what its user may.
        network: Whether confined code may use the network.
        max_memory_mib: Address space of each process; None means unlimited.
        max_cpu_s: Seconds of processor time of each process; None means unlimited.
        max_file_mib: The largest file that a process may write; None means unlimited.
        name: The name of the toolkit.
        middlewares: As those of a `Toolkit`.
        records: As those of a `Toolkit`.
        policy: As that of a `Toolkit`. Without one, all its callers may run any code.

    Raises `ValueError` if the folder or the interpreter does not exist, for a variable of toolbus,
    for a limit that is out of range, for the backend docker, and for `network` beside a policy.
    Where nothing confines as `sandbox` asks, it does not start: that is a `SandboxUnavailable`,
    whose message says what to install or to allow.
    """

    def __init__(  # noqa: PLR0913 - a toolkit's options, and those of its config
        self,
        workdir: str | PathLike[str] = ".",
        *,
        interpreter: str | PathLike[str] = sys.executable,
        env: Mapping[str, str] | None = None,
        inherit: Iterable[str] = (),
        sandbox: SandboxConfig | SandboxPolicy | str | bool | None = None,
        network: bool = False,
        max_memory_mib: int | None = None,
        max_cpu_s: int | None = None,
        max_file_mib: int | None = None,
        name: str = "python",
        middlewares: Iterable[Middleware] = (),
        records: Records | None = None,
        policy: Permissions | None = None,
    ) -> None:
        max_timeout_s = None
        if isinstance(sandbox, SandboxPolicy):
            if network:
                raise ValueError("write the network into the config or a profile of the policy")
            sandbox, max_timeout_s = sandbox.recommend_command(f"{name}.run")
        options: dict[str, Any] = {
            "workdir": Path(workdir),
            "interpreter": Path(interpreter),
            "env": dict(env or {}),
            "inherit": inherit,
            "sandbox": sandbox,
            "network": network,
            "max_memory_mib": max_memory_mib,
            "max_cpu_s": max_cpu_s,
            "max_file_mib": max_file_mib,
        }
        config = PythonConfig.model_validate(options)
        tools = PythonTools(config, max_timeout_s)
        self._python = tools
        super().__init__(
            name,
            tools.all,
            title="Python",
            description="Runs Python code, and returns its output, value and files.",
            rules=[
                "The value of the last expression is returned: no `print` is needed for it. The"
                " input is empty.",
                "Each call starts a new interpreter, without earlier names. With `keep` yours"
                " stays: use it to load data once and look at it in steps, and `reset` it when a"
                " module of the working directory has changed.",
                *_rules_of_sandbox(config.confinement),
            ],
            middlewares=middlewares,
            records=records,
            policy=policy,
        )
        self.workdirs = Roots([config.workdir]).folders

    @asynccontextmanager
    async def hosting(self, room: Any) -> AsyncIterator[None]:
        """Say what confines code, and warn where nothing limits what callers run.

        Raises `LaunchFailed` if the interpreter cannot run code.
        """
        await self._python.check_interpreter()
        confined = "not confined: it may do whatever the user of this process may"
        if self._python.sandbox is not None:
            confined = summary(await self._python.sandbox.probe())
        if not self.policies:
            _logger.warning(
                "toolkit %s has no policy: whoever may call it runs any code; `toolbus host"
                " --policy FILE` limits that",
                self.name,
            )
        _logger.warning("code of toolkit %s: %s", self.name, confined)
        yield


def _rules_of_sandbox(sandbox: SandboxConfig | None) -> list[str]:
    """Return what a model has to know of the sandbox that its code runs in."""
    if sandbox is None or sandbox.backend == "subprocess":
        return []
    network = "may use the network" if sandbox.network else "has no network"
    return [
        f"Code is confined: it changes files in the working directories only, {network}, and finds"
        " the home and `/tmp` empty. Do not try to get around that, but say what is needed."
    ]


def python(config: PythonConfig) -> Toolkit:
    """Python code: `run`, in an interpreter that ends with the call or stays, and `reset`.

    It is a factory: `toolbus host python --workdir PATH` hosts it, and
    `builder_of(python, workdir=...)` offers it to agents, each turn of which has interpreters of
    its own.

    Args:
        config: Where code runs, by which interpreter, and the limits of one call.
    """
    return Python(**dict(config))
