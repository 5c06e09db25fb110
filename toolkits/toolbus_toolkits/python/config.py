"""The config of the toolkit `python`, and what an interpreter needs to be seen."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from toolbus import OperatorOnly
from toolbus.settings import expanded, user_folder
from toolbus_toolkits.launcher.command_config import HostCommandConfig
from toolbus_toolkits.workspace import is_same_or_below

__all__ = ["PythonConfig", "folders_of"]


class PythonConfig(HostCommandConfig, frozen=True, extra="forbid"):
    """Where the toolkit `python` runs code, with which interpreter and within which limits.

    Raises `ValidationError` as `HostCommandConfig`, and if there is no such interpreter.
    """

    interpreter: Annotated[Path, OperatorOnly] = Field(
        Path(sys.executable),
        description="The Python that runs the code, such as .venv/bin/python. By default that which"
        " runs toolbus.",
        validate_default=True,
    )

    @field_validator("interpreter")
    @classmethod
    def _must_be_a_program(cls, interpreter: Path) -> Path:
        found = shutil.which(expanded(interpreter))
        if found is None:
            raise ValueError(f"there is no program {str(interpreter)!r}")
        # Not resolved: a virtual environment is known by the path of its interpreter.
        return Path(os.path.abspath(found))


def folders_of(interpreter: Path) -> Iterator[str]:
    """Yield the folders that an interpreter reads: its environment and its installation.

    It is not run for that, since confined code may have changed it. Those in which nothing of
    Python is found are left out, and the user's own folder: a link may lead anywhere.
    """
    user = os.path.realpath(user_folder())
    path = interpreter
    while True:
        folder = path.parent.parent
        if (folder / "pyvenv.cfg").is_file() or any(folder.glob("lib/python3*/os.py")):
            # uv names a version by a link beside it, which has to be seen too.
            is_named = folder.is_symlink() and folder.resolve().parent == folder.parent.resolve()
            shown = os.fspath(folder.parent if is_named else folder)
            if not is_same_or_below(user, os.path.realpath(shown)):
                yield shown
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()
