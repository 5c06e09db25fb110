"""The config of the toolkit `lsp`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from toolbus import OperatorOnly
from toolbus_toolkits.launcher.command_config import HostCommandConfig
from toolbus_toolkits.lsp.languages import LANGUAGES
from toolbus_toolkits.workspace import existing_folder

__all__ = ["LspConfig"]


class LspConfig(HostCommandConfig, frozen=True, extra="forbid"):
    """Which folders the toolkit `lsp` knows, and which servers it starts there.

    Raises `ValidationError` as `HostCommandConfig`, for an unknown language, and for a command that
    is no command.
    """

    workdir: Annotated[Path, OperatorOnly] = Field(
        description="The folder of the project: relative paths are below it."
    )
    further_roots: Annotated[tuple[Path, ...], OperatorOnly] = Field(
        (), description="Further folders, whose files are reached by absolute paths."
    )
    server: Annotated[tuple[str, ...], OperatorOnly] = Field(
        (),
        description="A language and the command of its server, such as 'go=gopls'. By default"
        " pyright for python, and typescript-language-server for typescript where it is installed."
        " Files of a language without a name are meant by their end: '.vue=vue-language-server"
        " --stdio'.",
    )
    settings: Annotated[Mapping[str, Any], OperatorOnly] = Field(
        default_factory=dict,
        description='What servers ask for as the settings of an editor: {"python": {"analysis":'
        ' {"typeCheckingMode": "strict"}}}.',
    )

    @field_validator("further_roots")
    @classmethod
    def _must_be_folders(cls, roots: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(map(existing_folder, roots))

    @field_validator("server", mode="before")
    @classmethod
    def _may_be_a_mapping(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            return tuple(f"{language}={command}" for language, command in given.items())
        return given

    @field_validator("server")
    @classmethod
    def _must_name_a_language(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for text in given:
            language, sign, command = text.partition("=")
            if not sign:
                raise ValueError(f"{text!r} is not written as language=command")
            is_suffix = language.startswith(".") and len(language) > 1
            if language not in LANGUAGES and not is_suffix:
                known = ", ".join(LANGUAGES)
                raise ValueError(
                    f"{language!r} is no language: write the end of its files, such as .vue, or"
                    f" one of {known}"
                )
            try:
                words = shlex.split(command)
            except ValueError as error:
                raise ValueError(f"the command of {language}: {error}") from None
            if not words:
                raise ValueError(f"the command of {language} is empty")
        return given

    @field_validator("settings")
    @classmethod
    def _may_have_dots(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take names with dots apart, as the settings files of editors have them."""
        nested: dict[str, Any] = {}
        for name, value in given.items():
            *sections, last = name.split(".")
            inner = nested
            for section in sections:
                inner = inner.setdefault(section, {})
                if not isinstance(inner, dict):
                    raise ValueError(f"{section!r} in {name!r} has a value too, and no settings")
            if isinstance(value, Mapping) and isinstance(inner.get(last), dict):
                inner[last] = {**inner[last], **value}
            else:
                inner[last] = dict(value) if isinstance(value, Mapping) else value
        return nested

    def commands(self) -> dict[str, list[str]]:
        """Return the words of each command that was named, by language."""
        pairs = (text.partition("=") for text in self.server)
        return {language: shlex.split(command) for language, _, command in pairs}
