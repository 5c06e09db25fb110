"""The config of the toolkit `files`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, field_validator

from toolbus import OperatorOnly
from toolbus.settings import expanded

__all__ = ["FilesConfig"]


class FilesConfig(BaseModel, frozen=True, extra="forbid"):
    """Which folders the toolkit `files` reaches, and what it does there.

    Raises `ValidationError` if a folder does not exist.
    """

    root: Annotated[Path, OperatorOnly] = Field(
        description="The folder whose files are read and changed; relative paths are below it."
    )
    further_roots: Annotated[tuple[Path, ...], OperatorOnly] = Field(
        (), description="Further folders, whose files are reached by absolute paths."
    )
    read_only: Annotated[bool, OperatorOnly] = Field(
        False, description="Offer only the tools that change nothing."
    )
    additional_dangerous_files: Annotated[tuple[str, ...], OperatorOnly] = Field(
        (), description="Further files that a person decides about, with * and ?."
    )
    additional_dangerous_directories: Annotated[tuple[str, ...], OperatorOnly] = Field(
        (), description="Further folders that a person decides about, with all in them."
    )

    @field_validator("root", "further_roots", mode="before")
    @classmethod
    def _must_not_be_empty(cls, value: Any) -> Any:
        # `Path("")` is the folder of this process: no one means it by a variable that is not set.
        if value == "" or (isinstance(value, list | tuple) and "" in value):
            raise ValueError("it is empty; . is the folder of this process")
        return value

    @field_validator("root")
    @classmethod
    def _must_be_a_folder(cls, root: Path) -> Path:
        path = expanded(root)
        if not path.is_dir():
            raise ValueError(f"there is no such folder: {str(path)!r}")
        return path.resolve()

    @field_validator("further_roots")
    @classmethod
    def _must_be_folders(cls, roots: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(map(cls._must_be_a_folder, roots))
