"""The manifests of bundles: `toolbus-bundle.yaml`, `agx-bundle.yaml`, or a skill alone.

All three become one `Manifest`. It says what a bundle has, by paths in the bundle; whether that is
there and valid is checked in `bundle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
)

from toolbus_toolkits.bundles.contents import BundleRefused, checked_path
from toolbus_toolkits.skills.files import UnreadableFile, text_of
from toolbus_toolkits.skills.front_matter import read_yaml
from toolbus_toolkits.skills.skill import SKILL_FILE

__all__ = [
    "AGX_FILE",
    "BUNDLE_FILE",
    "NAME_PATTERN",
    "Manifest",
    "Requirements",
    "read_manifest",
    "read_mapping",
    "validated",
]

BUNDLE_FILE = "toolbus-bundle.yaml"
AGX_FILE = "agx-bundle.yaml"
NAME_PATTERN = r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$"
"""The names of bundles, avatars and memory templates, which become names of files."""


def _is_version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion:
        raise ValueError("must be a version, such as 1.2.0") from None
    return text.strip()  # `Version` ignores what is around it; registries compare the text


def _is_range(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError("must be a range of versions, such as >=1.2,<2") from None
    return text


def _text_of_number(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value


_WORDS = {
    "string_type": "must be text: put it in quotes",  # YAML reads 1.0 as a number
    "extra_forbidden": "is no key of this form",
    "missing": "is missing",
}
"""What is wrong, for errors that pydantic names in terms of Python."""
_Path = Annotated[
    str, AfterValidator(lambda text: str(checked_path(text.removeprefix("./").removesuffix("/"))))
]
_Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
_Line = Annotated[str, StringConstraints(max_length=4_096)]
_Range = Annotated[str, AfterValidator(_is_range)]
_LooseVersion = Annotated[
    str,
    BeforeValidator(_text_of_number),  # YAML reads 0.1 as a number
    StringConstraints(pattern=r"^[A-Za-z0-9.+_-]{1,64}$"),
]


class Requirements(BaseModel, frozen=True, extra="forbid"):
    """What has to be there before a bundle is installed."""

    toolbus: _Range = ""
    """The versions of toolbus, as PEP 440 writes ranges."""
    bundles: dict[_Name, _Range] = Field(default_factory=dict)
    """Other bundles, each with its versions."""


class _About(BaseModel, frozen=True, extra="forbid"):
    name: _Name
    description: _Line = ""
    author: _Line = ""
    license: _Line = ""


class _ToolbusManifest(_About):
    toolbus_bundle: Literal["1"]
    version: Annotated[str, AfterValidator(_is_version)]
    requires: Requirements = Requirements()
    skills: tuple[_Path, ...] = ()
    mcp_servers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    avatars: dict[_Name, _Path] = Field(default_factory=dict)
    memory_templates: dict[_Name, _Path] = Field(default_factory=dict)

    def manifest(self) -> Manifest:
        return Manifest(
            form="toolbus",
            name=self.name,
            version=self.version,
            description=self.description,
            requires=self.requires,
            skills=self.skills,
            servers=tuple(self.mcp_servers.items()),
            avatars=tuple(self.avatars.items()),
            memory_templates=tuple(self.memory_templates.items()),
        )


class _AgxSkill(BaseModel, frozen=True):
    path: _Path


class _AgxConfigured(BaseModel, frozen=True):
    name: _Name
    config_path: _Path


class _AgxServer(BaseModel, frozen=True):
    name: str = Field(min_length=1, max_length=256)
    config_path: _Path


class _AgxTemplate(BaseModel, frozen=True):
    name: _Name
    path: _Path


class _AgxComponents(BaseModel, frozen=True):
    skills: tuple[_AgxSkill, ...] = ()
    mcp_servers: tuple[_AgxServer, ...] = ()
    avatars: tuple[_AgxConfigured, ...] = ()
    memory_templates: tuple[_AgxTemplate, ...] = ()


class _AgxManifest(_About, extra="ignore"):
    """The form of AgenticX; keys that it does not define are ignored, as it does."""

    agx_bundle: Annotated[Literal["1", "1.0"], BeforeValidator(_text_of_number)]
    version: _LooseVersion = "0.1.0"
    components: _AgxComponents = _AgxComponents()

    def manifest(self) -> Manifest:
        parts = self.components
        return Manifest(
            form="agx",
            name=self.name,
            version=self.version,
            description=self.description,
            skills=tuple(skill.path for skill in parts.skills),
            servers=tuple((server.name, server.config_path) for server in parts.mcp_servers),
            avatars=tuple((avatar.name, avatar.config_path) for avatar in parts.avatars),
            memory_templates=tuple(
                (template.name, template.path) for template in parts.memory_templates
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a bundle says of itself."""

    form: Literal["toolbus", "agx", "skill"]
    name: str = ""
    """Empty for a skill alone, which has its own name."""
    version: str = ""
    description: str = ""
    requires: Requirements = field(default_factory=Requirements)
    skills: tuple[str, ...] = ()
    """Folders with a `SKILL.md`, or those files; `.` is the bundle itself."""
    servers: tuple[tuple[str, Mapping[str, Any] | str], ...] = ()
    """Names of MCP servers, each with its entry or the path of a file with it."""
    avatars: tuple[tuple[str, str], ...] = ()
    memory_templates: tuple[tuple[str, str], ...] = ()


def read_manifest(contents: Mapping[str, bytes]) -> Manifest:
    """Return the manifest of a bundle. Raises `BundleRefused` if there is none, or for errors."""
    found = [name for name in (BUNDLE_FILE, AGX_FILE) if name in contents]
    if len(found) == 2:
        raise BundleRefused(f"the bundle has both {BUNDLE_FILE} and {AGX_FILE}: remove one")
    if not found and SKILL_FILE in contents:
        return Manifest(form="skill", skills=(".",))
    if not found:
        raise BundleRefused(
            f"there is no {BUNDLE_FILE}, {AGX_FILE} or {SKILL_FILE} at its top: it is no bundle"
        )
    (file,) = found
    data = read_mapping(contents[file], file)
    if file == AGX_FILE:
        return validated(_AgxManifest, data, file).manifest()
    return validated(_ToolbusManifest, data, file).manifest()


def read_mapping(content: bytes, file: str) -> dict[str, Any]:
    """Return what a file of YAML or JSON says. Raises `BundleRefused`."""
    try:
        return read_yaml(text_of(content), file)
    except UnreadableFile as error:
        raise BundleRefused(f"{file} {error}") from None
    except ValueError as error:
        raise BundleRefused(str(error)) from None


_ModelT = TypeVar("_ModelT", bound=BaseModel)


def validated(model: type[_ModelT], data: Mapping[str, Any], file: str) -> _ModelT:
    """Check what a file says. Raises `BundleRefused` with the path of each mistake."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        words = []
        for detail in error.errors(include_url=False, include_context=False, include_input=False):
            path = "".join(f"/{part}" for part in detail["loc"])
            why = _WORDS.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
            words.append(f"{file}: {path}: {why}")
        raise BundleRefused("\n".join(words[:20])) from None
