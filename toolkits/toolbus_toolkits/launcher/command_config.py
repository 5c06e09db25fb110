"""What toolkits that run commands have in common: where they run, and within which limits."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from toolbus import OperatorOnly
from toolbus_toolkits.launcher.process import ProgramLimits
from toolbus_toolkits.launcher.program import program_environment
from toolbus_toolkits.sandbox import SandboxConfig, SandboxOption
from toolbus_toolkits.workspace import existing_folder

__all__ = ["CommandConfig", "HostCommandConfig", "command_environment"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MIB = 1024 * 1024


def command_environment(
    added: Mapping[str, str] | None = None,
    inherited: Iterable[str] = (),
    host: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the variables of every started program, and what the operator adds.

    Args:
        added: What the operator sets; it wins over what is inherited.
        inherited: Names of further variables of this process, such as `SSH_AUTH_SOCK`.
        host: The variables of this process.
    """
    further = {name: host[name] for name in inherited if name in host}
    variables = program_environment({**further, **(added or {})}, host)
    # A relative folder of PATH is one of the directory that a command starts in, where anybody may
    # have put an `ls`; an empty entry is that directory itself.
    folders = variables.get("PATH", os.defpath).split(os.pathsep)
    variables["PATH"] = os.pathsep.join(folder for folder in folders if os.path.isabs(folder))
    return variables


class CommandConfig(BaseModel, frozen=True, extra="forbid"):
    """Where a toolkit runs commands, with which variables and within which limits.

    Raises `ValidationError` if a folder does not exist, a variable is one of toolbus, or a limit is
    out of range.
    """

    workdir: Annotated[Path, OperatorOnly] = Field(
        description="The folder that commands start in, and may change files of."
    )
    env: Annotated[Mapping[str, str], OperatorOnly] = Field(
        default_factory=dict,
        description='Variables that commands get, beside PATH, HOME and such: {"CI": "1"}.',
    )
    inherit: Annotated[tuple[str, ...], OperatorOnly] = Field(
        (), description="Names of variables of the host that commands get, such as SSH_AUTH_SOCK."
    )
    sandbox: Annotated[SandboxOption, OperatorOnly] = Field(
        None,
        description="What confines commands: auto, bubblewrap, landlock, docker, or JSON of a"
        " SandboxConfig. Without it they may do whatever the user of the host may.",
    )
    network: Annotated[bool, OperatorOnly] = Field(
        False, description="Confined commands may use the network; others always may."
    )
    max_memory_mib: Annotated[int | None, OperatorOnly] = Field(
        None, ge=16, description="Address space of each process, in MiB; Node.js reserves much."
    )
    max_cpu_s: Annotated[int | None, OperatorOnly] = Field(
        None, ge=1, description="Seconds of processor time of each process."
    )
    max_file_mib: Annotated[int | None, OperatorOnly] = Field(
        None, ge=1, description="The largest file that a process may write, in MiB."
    )

    @field_validator("workdir")
    @classmethod
    def _must_be_a_folder(cls, workdir: Path) -> Path:
        return existing_folder(workdir)

    @field_validator("env", "inherit")
    @classmethod
    def _must_be_for_commands(
        cls, given: Mapping[str, str] | tuple[str, ...]
    ) -> Mapping[str, str] | tuple[str, ...]:
        for name in given:
            if _NAME.fullmatch(name) is None:
                raise ValueError(f"{name!r} is no name of a variable")
            if name.startswith("TOOLBUS_"):
                raise ValueError(f"{name} is a setting of toolbus, which commands must not read")
        if isinstance(given, Mapping) and any("\0" in value for value in given.values()):
            raise ValueError("the value of a variable contains NUL")
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        sandbox = self.confinement
        if sandbox is None and self.network:
            raise ValueError("network is for confined commands: name a sandbox too")
        if sandbox is not None:
            sandbox.with_roots([self.workdir])  # raises where it cannot be given
        return self

    @property
    def confinement(self) -> SandboxConfig | None:
        """What commands may reach, without their working directories; None if unconfined."""
        if not isinstance(self.sandbox, SandboxConfig):  # after validation it is no text
            return None
        return self.sandbox.model_copy(update={"network": True}) if self.network else self.sandbox

    def limits(self) -> ProgramLimits:
        """Return the limits of each process as the launcher takes them."""
        return ProgramLimits(
            memory_bytes=self.max_memory_mib and self.max_memory_mib * _MIB,
            cpu_s=self.max_cpu_s,
            open_files=None,  # those of the host: builds and their watchers need many
            file_bytes=self.max_file_mib and self.max_file_mib * _MIB,
        )


class HostCommandConfig(CommandConfig, frozen=True, extra="forbid"):
    """As `CommandConfig`, for programs of the host, which the image of a container may not have.

    Raises `ValidationError` for docker too.
    """

    @model_validator(mode="after")
    def _is_not_docker(self) -> Self:
        sandbox = self.confinement
        if sandbox is not None and sandbox.backend == "docker":
            raise ValueError("docker is not supported here: use bubblewrap or landlock")
        return self
