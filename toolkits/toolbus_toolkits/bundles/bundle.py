"""One bundle: its manifest, and the files and entries that it would install, all checked.

A bundle with one broken part is refused whole, with the reason. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

from toolbus import InvalidArguments
from toolbus.untrusted_text import one_line
from toolbus_toolkits.bounded_json import parse_json
from toolbus_toolkits.bundles.contents import BundleRefused
from toolbus_toolkits.bundles.manifest import (
    AGX_FILE,
    BUNDLE_FILE,
    Manifest,
    read_manifest,
    read_mapping,
)
from toolbus_toolkits.credentials.references import refuse_references
from toolbus_toolkits.mcp.config import ServerEntry, read_servers
from toolbus_toolkits.mcp.entry_keys import read_entry
from toolbus_toolkits.mcp.names import toolkit_name
from toolbus_toolkits.memory import TEMPLATES_FOLDER
from toolbus_toolkits.skills.files import UnreadableFile, text_of
from toolbus_toolkits.skills.skill import (
    INSTALLED_FOLDER,
    SKILL_FILE,
    Skill,
    SkillRefused,
    SkillSource,
    parse_skill,
)

__all__ = ["AVATARS", "Bundle", "no_references", "read_bundle"]

AVATARS = "avatars"


@dataclass(slots=True)
class Bundle:
    """What a bundle installs. Paths are those below `TOOLBUS_HOME`."""

    manifest: Manifest
    name: str
    version: str
    files: dict[str, bytes] = field(default_factory=dict)
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Entries of `mcp.json`, as they are written, by the names of their toolkits."""
    skills: list[str] = field(default_factory=list)
    avatars: list[str] = field(default_factory=list)
    memory_templates: list[str] = field(default_factory=list)

    def entry(self, server: str) -> ServerEntry:
        """Return the entry of an MCP server, as it is understood."""
        return ServerEntry.model_validate(self.servers[server])


def read_bundle(contents: Mapping[str, bytes]) -> Bundle:
    """Return the bundle that these files are.

    Raises `BundleRefused` for a part that is missing, is not valid, or refers to a credential.
    """
    manifest = read_manifest(contents)
    bundle = Bundle(manifest, manifest.name, manifest.version)
    for path in manifest.skills:
        _add_skill(bundle, contents, path)
    for name, given in manifest.servers:
        _add_server(bundle, contents, name, given)
    for name, path in manifest.avatars:
        no_references(read_mapping(_file(contents, path), path), path)
        bundle.avatars.append(_add_file(bundle, contents, AVATARS, name, path))
    for name, path in manifest.memory_templates:
        bundle.memory_templates.append(_add_file(bundle, contents, TEMPLATES_FOLDER, name, path))
    if not bundle.files and not bundle.servers:
        raise BundleRefused("the bundle has nothing to install")
    return bundle


def _add_skill(bundle: Bundle, contents: Mapping[str, bytes], path: str) -> None:
    folder = PurePosixPath(path)
    if folder.name == SKILL_FILE:
        folder = folder.parent
    try:
        skill = parse_skill(_file(contents, str(folder / SKILL_FILE)), Path(), SkillSource(Path()))
    except SkillRefused as error:
        raise BundleRefused(f"{folder / SKILL_FILE}: {error}") from None
    if (
        skill.name in bundle.skills
        or f"{INSTALLED_FOLDER}/{skill.key}/{SKILL_FILE}" in bundle.files
    ):
        raise BundleRefused(f"the bundle has two skills {skill.name!r}")
    if bundle.manifest.form == "skill":
        bundle.name, bundle.version = skill.key, _version_of(skill)
    bundle.skills.append(skill.name)
    for inner, content in _below(contents, folder, bundle.manifest):
        bundle.files[f"{INSTALLED_FOLDER}/{skill.key}/{inner}"] = content


def _version_of(skill: Skill) -> str:
    for place in (skill.metadata, skill.metadata.get("metadata")):
        if isinstance(place, Mapping) and isinstance(place.get("version"), str | int | float):
            return one_line(str(place["version"]), 64)
    return ""


def _below(
    contents: Mapping[str, bytes], folder: PurePosixPath, manifest: Manifest
) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a skill: those below its folder that are not another part's."""
    paths = {name: PurePosixPath(name) for name in contents}
    others = {path.parent for path in paths.values() if path.name == SKILL_FILE} - {folder}
    taken = {
        BUNDLE_FILE,
        AGX_FILE,
        *(given for _, given in manifest.servers if isinstance(given, str)),
    }
    taken.update(file for _, file in (*manifest.avatars, *manifest.memory_templates))
    for name, path in paths.items():
        is_own = path.is_relative_to(folder) and name not in taken
        if is_own and not any(other.is_relative_to(folder) for other in others & set(path.parents)):
            yield str(path.relative_to(folder)), contents[name]


def _add_server(
    bundle: Bundle, contents: Mapping[str, bytes], name: str, entry: Mapping[str, Any] | str
) -> None:
    """Add an entry, or that of a file, which may hold it alone, or as `mcpServers` has it."""
    if isinstance(entry, str):
        content = _file(contents, entry)
        try:
            entry = parse_json(text_of(content))
        except (UnreadableFile, ValueError) as error:
            raise BundleRefused(f"{entry} {error}") from None
    no_references(entry, f"MCP server {one_line(name, 64)}")
    entries = _entries(name, entry)
    try:
        read = read_servers({"mcpServers": entries}, f"MCP server {one_line(name, 64)}")
    except ValueError as error:
        raise BundleRefused(str(error)) from None
    if read.skipped:
        skipped = read.skipped[0]
        text = f"MCP server {one_line(skipped.name, 64)}: {one_line(skipped.reason, 400)}"
        raise BundleRefused(text)
    for key, server in entries.items():
        if toolkit_name(key) in bundle.servers:
            raise BundleRefused(f"the bundle has two MCP servers {toolkit_name(key)!r}")
        fields, _ = read_entry(server)
        # The entry is written into a file of the user, who may name it with --config later.
        for option, what in (("trusted", "that it is trusted"), ("sandbox", "what confines it")):
            if fields.get(option):
                text = f"MCP server {toolkit_name(key)}: only who hosts it can say {what}"
                raise BundleRefused(text)
        bundle.servers[toolkit_name(key)] = dict(server)


def _entries(name: str, value: object) -> Mapping[str, Any]:
    """Return the entries of a file, or the one that it is, by their names."""
    if isinstance(value, Mapping):
        for key in ("mcpServers", "servers"):
            if isinstance(value.get(key), Mapping):
                return cast("Mapping[str, Any]", value[key])
    return {name: value}


def _add_file(
    bundle: Bundle, contents: Mapping[str, bytes], folder: str, name: str, path: str
) -> str:
    target = f"{folder}/{name}{PurePosixPath(path).suffix.lower()}"
    if any(file.lower() == target.lower() for file in bundle.files):
        raise BundleRefused(f"the bundle has {target!r} twice")
    bundle.files[target] = _file(contents, path)
    return name


def _file(contents: Mapping[str, bytes], path: str) -> bytes:
    if path not in contents:
        raise BundleRefused(f"{path} is in the manifest and not in the bundle")
    return contents[path]


def no_references(value: object, where: str) -> None:
    """Refuse a value that refers to a credential. Raises `BundleRefused`."""
    try:
        refuse_references(value)
    except InvalidArguments as error:
        raise BundleRefused(f"{where}: {error.message}") from None
    except RecursionError:
        raise BundleRefused(f"{where} is nested too deep") from None
