"""Variables that editors fill in, such as `${env:NAME}`, and paths in the fields of an entry.

Variables of the environment are filled in only for a file that the operator names: a file that lies
in a folder could otherwise send any of them to an address of its choice. Those that only say where
something is are filled in for every file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolbus.settings import user_folder
from toolbus_toolkits.bounded_json import read_json_file

__all__ = ["MAX_FILE_BYTES", "FileContext", "filled_in"]

_VARIABLE = re.compile(
    # What is searched for each brace is bounded by this length.
    r"\$\{(?!cred:)(?P<inner>[^{}]{1,400})\}"
    r"|\$\{(?!cred:)(?P<odd>[A-Za-z_{])"
    r"|\{(?P<opencode>(?:env|file):[^{}]{1,400})\}"
    # Gemini CLI's, as a whole word, so that the `$` of a password stays.
    r"|(?<!\S)\$(?P<word>[A-Z_][A-Z0-9_]*)(?!\S)"
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_SHOWN = re.compile(r"env:\w+|(?:input|config|command|file):[\w.-]+|\w+")
_SHELL_OPTION = re.compile(r"-[A-Za-z]*c")
_ENV_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][\w.-]*)\s*=\s*(.*)")
_QUOTED = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)')\s*(?:#.*)?""")
_ESCAPES = {"\\n": "\n", "\\t": "\t", '\\"': '"', "\\\\": "\\", "\\$": "$"}
MAX_FILE_BYTES = 1024 * 1024
"""Of a file of servers, and of one with variables: it is held in memory."""


@dataclass(frozen=True, slots=True)
class FileContext:
    """What the variables and paths in the entries of a file stand for."""

    folder: Path | None = None
    """Where relative paths begin, and `${workspaceFolder}`; None if there is no file."""
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    """Variables that entries may have; None if they may have none."""
    defaults: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values of `${input:id}` that the file itself has."""
    may_trust: bool = False
    """Whether an entry may say that its server is trusted. A file that lies in a folder, or comes
    with a call, could otherwise speak for its own server."""


def filled_in(fields: Mapping[str, Any], context: FileContext) -> dict[str, Any]:
    """Return the fields of an entry with its variables filled in, and those of its `env_file`.

    Raises `ValueError`, without a value, for a variable that is not known here.
    """
    found = dict(fields)
    for name in ("command", "cwd", "url"):
        if isinstance(found.get(name), str):
            found[name] = _at_home(_fill(found[name], context))
    if isinstance(found.get("args"), list):
        found["args"] = list(_filled_args(found["args"], context))
    for name in found.keys() & {"env", "headers"}:
        found[name] = {
            key: _fill(value, context, is_value=True) if isinstance(value, str) else value
            for key, value in found[name].items()
        }
    if isinstance(found.get("cwd"), str) and context.folder is not None:
        found["cwd"] = str(context.folder / found["cwd"])
    if isinstance(found.get("sandbox"), Mapping):
        found["sandbox"] = {
            key: [_path(item, context) for item in value]
            if key in ("write", "read", "hide") and isinstance(value, list)
            else value
            for key, value in found["sandbox"].items()
        }
    if (files := found.pop("env_file", None)) is not None:
        read = _read_env_files(files if isinstance(files, list) else [files], context)
        found["env"] = read | found.get("env", {})
    return found


def _filled_args(args: Iterable[Any], context: FileContext) -> Iterator[Any]:
    former = ""
    for arg in args:
        if not isinstance(arg, str):
            yield arg
        elif _SHELL_OPTION.fullmatch(former):  # the shell fills in `sh -c 'echo ${NAME}'`
            yield _fill(arg, context, for_shell=True)
        else:
            yield _at_home(_fill(arg, context))
        former = str(arg)


def _fill(
    text: str, context: FileContext, *, for_shell: bool = False, is_value: bool = False
) -> str:
    """Return a text with its variables filled in.

    Args:
        text: The text.
        context: What the variables stand for.
        for_shell: Whether a shell reads it, which fills in the rest.
        is_value: Whether it is a value of `env` or `headers`: what is filled in is no reference to
            a credential, whatever it looks like.
    """
    last = text.rfind("}")

    def value_of(match: re.Match[str]) -> str:
        value: str | None = None
        if match["inner"] or (match["opencode"] and not for_shell):
            inner = match["inner"] or match["opencode"]
            value = _value_of(inner, context, for_shell=for_shell)
        elif match["word"] is not None and is_value:
            value = (context.environment or {}).get(match["word"])
        elif match["odd"] is not None and not for_shell and last > match.end():
            raise _unknown(text[match.start("odd") :], context)
        if value is None:
            return match[0]
        return _escaped(value) if is_value else value

    return _VARIABLE.sub(value_of, text)


def _value_of(inner: str, context: FileContext, *, for_shell: bool = False) -> str | None:
    """Return the value of a variable, without its braces; None leaves it to a shell."""
    name, has_default, written = inner.partition(":-")
    default = written if has_default else None
    kind, _, variable = name.partition(":")
    places = _places(context)
    missing = ""
    if name in places:
        return places[name]
    if kind == "input" and variable:  # what an editor asks its user for
        default = context.defaults.get(variable)
        variable = "INPUT_" + re.sub(r"\W", "_", variable).upper()
        missing = f"nobody is asked here: set {variable} in the environment"
    elif kind != "env" or not variable:
        if for_shell:
            return None
        if not _NAME.fullmatch(name):
            raise _unknown(inner, context)
        variable = name
    if variable == "HOME":  # it says where something is, as `~` does
        return str(user_folder())
    if context.environment is None:
        raise _unknown(inner, context)
    value = context.environment.get(variable)
    if value is None or not (value or missing):  # an answer to an editor may be empty
        value = default
    if value is None:
        missing = missing or f"there is no variable {variable} in the environment of this host"
        raise ValueError(f"{_shown(inner)} is not filled in: {missing}")
    return value


def _places(context: FileContext) -> dict[str, str]:
    """Return the variables that say where something is."""
    places = {"userHome": str(user_folder()), "/": os.sep, "pathSeparator": os.sep}
    if context.folder is not None:
        folder = str(context.folder)
        places |= dict.fromkeys(("workspaceFolder", "workspaceRoot", "cwd"), folder)
        places["workspaceFolderBasename"] = context.folder.name
    return places


def _unknown(inner: str, context: FileContext) -> ValueError:
    text = f"{_shown(inner)} is not filled in here: write it out"
    if context.environment is None:
        text += ", or name the file with --config, for variables of the environment"
    return ValueError(text)


def _shown(inner: str) -> str:
    """Return a variable without its default, which may be a secret."""
    name = _SHOWN.match(inner.removeprefix("{"))
    return f"${{{name[0] if name else '...'}}}"


def _escaped(value: str) -> str:
    return value.replace("${cred:", "$${cred:")


def _path(value: object, context: FileContext) -> object:
    """Return a path with its variables filled in, which begins where those of the file do."""
    if not isinstance(value, str):
        return value
    path = _at_home(_fill(value, context))
    return path if context.folder is None else str(context.folder / path)


def _at_home(text: str) -> str:
    """Return a path that may begin with `~`, as a shell reads it."""
    return re.sub(r"\A~(?=/|\Z)", lambda _: str(user_folder()), text)


def _read_env_files(files: Iterable[object], context: FileContext) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in files:
        if not isinstance(name, str) or context.folder is None:
            raise ValueError("envFile must be the path of a file, in an entry of a file")
        path = context.folder / _at_home(_fill(name, context))
        try:
            is_file = path.is_file()
        except OSError as error:
            raise ValueError(f"envFile {path}: it cannot be read: {error.strerror}") from None
        if not is_file:  # reading a pipe would wait for ever
            raise ValueError(f"envFile {path}: it is no file")
        try:
            found |= read_json_file(path, MAX_FILE_BYTES, parse=_env_lines)
        except ValueError as error:
            raise ValueError(f"envFile {error}") from None
    return found


def _env_lines(text: str) -> dict[str, str]:
    """Return the variables of a file with lines `NAME=value`; other lines are passed over."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        match = _ENV_LINE.fullmatch(line.strip())
        if match is None:
            continue
        value = match[2]
        quoted = _QUOTED.fullmatch(value)
        if quoted is None:
            value = re.split(r"(?:^|\s)#", value, maxsplit=1)[0].rstrip()
        elif quoted[1] is None:
            value = quoted[2]
        else:
            value = re.sub(r"\\.", lambda pair: _ESCAPES.get(pair[0], pair[0]), quoted[1])
        found[match[1]] = _escaped(value)
    return found
