"""What a confined program may reach, as its operator writes it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from toolbus.settings import expanded
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.workspace import is_same_or_below, resolve

__all__ = ["BACKENDS", "Backend", "Protect", "SandboxConfig", "SandboxOption", "read_sandbox"]

Backend: TypeAlias = Literal["bubblewrap", "landlock", "docker", "subprocess"]
Protect: TypeAlias = Literal["if possible"] | bool

BACKENDS: tuple[Backend, ...] = ("bubblewrap", "landlock", "docker", "subprocess")

_OF_THE_SANDBOX = ("/proc", "/sys", "/dev")
"""Each backend shows a safe part of these. Another part would give back what it takes away."""


class SandboxConfig(BaseModel, frozen=True, extra="forbid"):
    """What a program may reach that is started with it.

    Paths are resolved when the config is made, and stay so: a symlink that is put in the place of
    one of them later is refused at the start of a program.

    Raises `ValidationError`, a `ValueError`, for a path that does not exist or that cannot be
    given, and for options that do not fit together.
    """

    backend: Literal["auto", Backend] = Field(
        "auto",
        description="What confines: bubblewrap, landlock, docker, or subprocess, which only sets"
        " limits. auto takes the first of bubblewrap and landlock that passes its probe.",
    )
    write: tuple[str, ...] = Field(
        (), description="Folders and files that may be changed. Toolkits add their own folders."
    )
    read: tuple[str, ...] = Field(
        (), description="Further folders and files that may be read, beside those of the system."
    )
    hide: tuple[str, ...] | None = Field(
        None,
        description="Files and folders that cannot be read, wherever they are. By default those of"
        " the user's folder and of the system that hold secrets.",
    )
    protect: Protect = Field(
        "if possible",
        description="Whether secrets in the folders cannot be read, and settings that other"
        " programs obey cannot be changed. true is an error where that cannot be held.",
    )
    network: bool = Field(False, description="Whether it may use the network.")
    unix_sockets: bool = Field(False, description="Whether it may open sockets of this machine.")
    max_processes: Annotated[int, Field(ge=1)] | None = Field(
        None, description="The most processes and threads that it may have at a time."
    )
    image: str | None = Field(
        None, description="The image that docker runs, with the programs in it."
    )

    @field_validator("backend", mode="before")
    @classmethod
    def _is_supported(cls, value: object) -> object:
        if value == "microsandbox":
            raise ValueError(
                "microsandbox is not supported: its virtual machines show no folder of this machine"
                " in place; use bubblewrap, landlock or docker"
            )
        return value

    @field_validator("write", "read", "hide")
    @classmethod
    def _is_resolved(cls, paths: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if paths is None else tuple(dict.fromkeys(map(_real_path, paths)))

    @field_validator("write", "read")
    @classmethod
    def _can_be_given(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            _require_can_be_given(path)
        return paths

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.backend == "docker") != (self.image is not None):
            raise ValueError("the backend docker needs an image, and no other backend has one")
        if self.backend == "subprocess":
            for name in ("hide", "max_processes"):
                if getattr(self, name) is not None:
                    raise ValueError(f"the backend subprocess confines nothing: it has no {name}")
            if self.protect is True:
                raise ValueError("the backend subprocess confines nothing: it cannot protect")
        return self

    def with_roots(self, roots: Iterable[str | os.PathLike[str]]) -> SandboxConfig:
        """Return a config that lets the working directories of a toolkit be changed too.

        Args:
            roots: Real paths. They are not resolved again: a program may have put a symlink in the
                place of one meanwhile, which is refused at the start of the next program.

        Raises `ValueError` for one that does not exist or that cannot be given.
        """
        added = tuple(os.fspath(root) for root in roots)
        for root in added:
            _require_can_be_given(root)
        return self.model_copy(update={"write": tuple(dict.fromkeys((*self.write, *added)))})


def read_sandbox(value: object) -> SandboxConfig:
    """Return a config from one, from its fields, from its JSON, or from the name of a backend.

    True is for "auto". Raises `ValueError`, in one line.
    """
    if value is True:
        value = {}
    elif isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"it is not JSON: {error}") from None
    elif isinstance(value, str):
        value = {"backend": value}
    try:
        return SandboxConfig.model_validate(value)
    except ValidationError as error:
        faults = (
            ": ".join((*map(str, fault["loc"]), fault["msg"].removeprefix("Value error, ")))
            for fault in error.errors(include_url=False, include_context=False)
        )
        raise ValueError("; ".join(faults)) from None


def _read_option(value: object) -> SandboxConfig | None:
    return None if value is None or value is False else read_sandbox(value)


SandboxOption: TypeAlias = Annotated[SandboxConfig | str | None, BeforeValidator(_read_option)]
"""A field of the config of a toolkit; after validation it has no text."""


def _require_can_be_given(path: str) -> None:
    shown = one_line(path, SHOWN_CHARS)
    if path == "/":
        raise ValueError("/ cannot be given: name the folders in it that are needed")
    if any(is_same_or_below(path, folder) for folder in _OF_THE_SANDBOX):
        raise ValueError(f"{shown} cannot be given: the sandbox shows its own part of it")
    if not os.path.exists(path):
        raise ValueError(f"there is no file or folder {shown}")


def _real_path(path: str) -> str:
    if "\0" in path:
        raise ValueError("a path has a NUL in it")
    return resolve(os.fspath(expanded(path)), os.getcwd())
