"""The config of the toolkit `shell`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, field_validator

from toolbus import OperatorOnly
from toolbus.settings import expanded
from toolbus_toolkits.launcher import ProgramLimits
from toolbus_toolkits.shell.environment import READING

__all__ = ["ShellConfig"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MIB = 1024 * 1024


class ShellConfig(BaseModel, frozen=True, extra="forbid"):
    """Where the toolkit `shell` runs commands, with which variables and within which limits.

    Raises `ValidationError` if a folder does not exist, a variable is one of toolbus, or a limit is
    out of range.
    """

    workdir: Annotated[Path, OperatorOnly] = Field(
        description="The folder that commands start in, and may change files of."
    )
    keep: bool = Field(
        False,
        description="Keep directory and exported variables between calls of a caller.",
    )
    env: Annotated[Mapping[str, str], OperatorOnly] = Field(
        default_factory=dict,
        description='Variables that commands get, beside PATH, HOME and such: {"CI": "1"}.',
    )
    inherit: Annotated[tuple[str, ...], OperatorOnly] = Field(
        (), description="Names of variables of the host that commands get, such as SSH_AUTH_SOCK."
    )
    additional_dangerous_files: Annotated[tuple[str, ...], OperatorOnly] = Field(
        (), description="Further files that a person decides about, with * and ?."
    )
    additional_dangerous_directories: Annotated[tuple[str, ...], OperatorOnly] = Field(
        (), description="Further folders that a person decides about, with all in them."
    )
    max_jobs: Annotated[int, OperatorOnly] = Field(
        16, ge=1, le=64, description="Background jobs of one caller that run at a time."
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
        path = expanded(workdir)
        if not path.is_dir():
            raise ValueError(f"there is no such folder: {str(path)!r}")
        return path.resolve()

    @field_validator("env", "inherit")
    @classmethod
    def _must_be_for_commands(
        cls, given: Mapping[str, str] | tuple[str, ...]
    ) -> Mapping[str, str] | tuple[str, ...]:
        for name in given:
            if _NAME.fullmatch(name) is None:
                raise ValueError(f"{name!r} is no name of a variable")
            if name in READING:
                raise ValueError(f"{name} changes how bash reads a command, which is judged before")
            if name.startswith("TOOLBUS_"):
                raise ValueError(f"{name} is a setting of toolbus, which commands must not read")
        if isinstance(given, Mapping) and any("\0" in value for value in given.values()):
            raise ValueError("the value of a variable contains NUL")
        return given

    def limits(self) -> ProgramLimits:
        """Return the limits of each process as the launcher takes them."""
        memory = self.max_memory_mib
        file = self.max_file_mib
        return ProgramLimits(
            memory_bytes=None if memory is None else memory * _MIB,
            cpu_s=self.max_cpu_s,
            open_files=None,  # those of the host: builds and their watchers need many
            file_bytes=None if file is None else file * _MIB,
        )
