"""The config of the toolkit `shell`, and the environment variables that commands start with."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from toolbus import OperatorOnly
from toolbus_toolkits.launcher.command_config import CommandConfig, command_environment

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
    inherited = frozenset(inherited)
    variables = command_environment(added, inherited, host)
    variables["GIT_OPTIONAL_LOCKS"] = "0"
    given = (inherited & host.keys()) | (added or {}).keys()
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


class ShellConfig(CommandConfig, frozen=True, extra="forbid"):
    """Where the toolkit `shell` runs commands, with which variables and within which limits.

    Raises `ValidationError` if a folder does not exist, a variable is one of toolbus, or a limit is
    out of range.
    """

    keep: bool = Field(
        False,
        description="Keep directory and exported variables between calls of a caller.",
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

    @field_validator("env", "inherit")
    @classmethod
    def _must_not_change_reading(
        cls, given: Mapping[str, str] | tuple[str, ...]
    ) -> Mapping[str, str] | tuple[str, ...]:
        for name in given:
            if name in READING:
                raise ValueError(f"{name} changes how bash reads a command, which is judged before")
        return given

    @model_validator(mode="after")
    def _fits_docker(self) -> Self:
        sandbox = self.confinement
        if sandbox is not None and sandbox.backend == "docker" and self.keep:
            raise ValueError("keep is not supported in docker: use bubblewrap or landlock")
        return self
