"""The config of the toolkit `shell`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from toolbus import OperatorOnly

__all__ = ["ShellConfig"]


class ShellConfig(BaseModel, frozen=True, extra="forbid"):
    """Where the toolkit `shell` runs commands, and within which limits.

    Raises `ValidationError` if a folder does not exist, or a limit is out of range.
    """

    workdir: Annotated[Path, OperatorOnly] = Field(description="The folder that commands start in.")
