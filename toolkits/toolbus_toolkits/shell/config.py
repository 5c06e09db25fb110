"""The config of the toolkit `shell`, and the environment variables that commands start with."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from toolbus import OperatorOnly
from toolbus.settings import expanded
from toolbus_toolkits.launcher import ProgramLimits, program_environment
from toolbus_toolkits.sandbox import SandboxConfig, SandboxOption

__all__ = ["READING", "ShellConfig", "is_harmless", "shell_environment"]

READING = frozenset("BASHOPTS BASH_COMPAT BASH_ENV ENV POSIXLY_CORRECT SHELLOPTS".split())
"""What changes how bash reads a line, or lets it run a file before; no command starts with them."""

_HARMLESS = frozenset(
    "CI CLICOLOR COLUMNS FORCE_COLOR LANG LANGUAGE LINES NO_COLOR PYTHONUNBUFFERED RUST_BACKTRACE"
    " TZ".split()
)

_WITHOUT_A_PERSON = {
    # Of git and others: the text that they would open in an editor stays as it is.
    **dict.fromkeys(("EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR"), "true"),
    **dict.fromkeys(("PAGER", "GIT_PAGER", "MANPAGER", "SYSTEMD_PAGER"), "cat"),
    "GIT_TERMINAL_PROMPT": "0",
    "TERM": "dumb",
}
"""What keeps programs from waiting for a person, who could not type anything."""

_GIT_CONFIG = {
    # The hook of a hostile repository runs with `git status`, as soon as its config names one.
    "core.fsmonitor": "false",
    # `git diff` writes the index in spite of GIT_OPTIONAL_LOCKS, and runs a hook when it has.
    "diff.autoRefreshIndex": "false",
    # A folder that looks like a bare repository may come with any other: with its own config.
    "safe.bareRepository": "explicit",
}
"""What git reads as if it stood on its command line, so that no file of a repository overrides it;
see "GIT_CONFIG_COUNT" in git-config(1)."""


def shell_environment(
    added: Mapping[str, str] | None = None,
    inherited: Iterable[str] = (),
    host: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the variables that a command starts with.

    They are those of every started program, what the operator adds, and what keeps git from writing
    the index, and git and pip from running programs that a folder names while they only read.

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
    variables["GIT_OPTIONAL_LOCKS"] = "0"
    given = further.keys() | (added or {}).keys()
    variables |= {name: _WITHOUT_A_PERSON[name] for name in _WITHOUT_A_PERSON.keys() - given}
    # `npm ls` would write a log, ask the registry for a newer npm, and keep when it asked.
    variables.setdefault("npm_config_logs_max", "0")
    variables.setdefault("npm_config_update_notifier", "false")
    variables.setdefault("CHECKPOINT_DISABLE", "1")  # `terraform version` would do the same
    # To ask for its new version `pip list` starts `rustc`, whose toolchain a folder may name.
    variables["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    count = variables.get("GIT_CONFIG_COUNT", "")
    first = int(count) if count.isdecimal() else 0
    for number, (key, value) in enumerate(_GIT_CONFIG.items(), first):
        variables[f"GIT_CONFIG_KEY_{number}"] = key
        variables[f"GIT_CONFIG_VALUE_{number}"] = value
    variables["GIT_CONFIG_COUNT"] = str(first + len(_GIT_CONFIG))
    return variables


def is_harmless(name: str) -> bool:
    """Whether a variable changes at most how a command writes what it writes."""
    return name in _HARMLESS or name.startswith("LC_")


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
    sandbox: Annotated[SandboxOption, OperatorOnly] = Field(
        None,
        description="What confines commands: auto, bubblewrap, landlock, docker, or JSON of a"
        " SandboxConfig. Without it they may do whatever the user of the host may.",
    )
    network: Annotated[bool, OperatorOnly] = Field(
        False, description="Confined commands may use the network; others always may."
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

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        sandbox = self.confinement
        if sandbox is None and self.network:
            raise ValueError("network is for confined commands: name a sandbox too")
        if sandbox is not None:
            sandbox.with_roots([self.workdir])  # raises where it cannot be given
        if sandbox is not None and sandbox.backend == "docker" and self.keep:
            raise ValueError("keep is not supported in docker: use bubblewrap or landlock")
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
