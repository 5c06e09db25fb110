"""Languages: the ends of their files, what the protocol calls them, and the usual servers."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "DEFAULTS",
    "INITIALIZATION_OPTIONS",
    "LANGUAGES",
    "default_server",
    "found_program",
    "language_id",
    "program_folders",
    "suffixes_of",
]

# By the name that `--server` takes: each end of a file with its `languageId`, which is from the
# table "Text Document Language Identifiers" of the specification.
LANGUAGES: dict[str, dict[str, str]] = {
    "c": {".c": "c", ".h": "c"},
    "cpp": dict.fromkeys((".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx"), "cpp"),
    "csharp": {".cs": "csharp"},
    "css": {".css": "css", ".less": "less", ".scss": "scss"},
    "dart": {".dart": "dart"},
    "elixir": {".ex": "elixir", ".exs": "elixir"},
    "go": {".go": "go"},
    "haskell": {".hs": "haskell"},
    "html": {".html": "html", ".htm": "html"},
    "java": {".java": "java"},
    "json": {".json": "json"},
    "kotlin": {".kt": "kotlin", ".kts": "kotlin"},
    "lua": {".lua": "lua"},
    "php": {".php": "php"},
    "python": {".py": "python", ".pyi": "python"},
    "ruby": {".rb": "ruby"},
    "rust": {".rs": "rust"},
    "scala": {".scala": "scala"},
    "shellscript": {".sh": "shellscript", ".bash": "shellscript"},
    "sql": {".sql": "sql"},
    "swift": {".swift": "swift"},
    "typescript": {
        **dict.fromkeys((".ts", ".mts", ".cts"), "typescript"),
        ".tsx": "typescriptreact",
        **dict.fromkeys((".js", ".mjs", ".cjs"), "javascript"),
        ".jsx": "javascriptreact",
    },
    "yaml": {".yaml": "yaml", ".yml": "yaml"},
    "zig": {".zig": "zig"},
}

INITIALIZATION_OPTIONS = {
    # By default a second process answers while the project is read, and knows no other file; and
    # it watches the files itself, so that it is late.
    "typescript-language-server": {
        "tsserver": {"useSyntaxServer": "never", "useClientFileWatcher": True}
    },
}
"""What servers get at their start, by the names of their programs."""
DEFAULTS = {
    "python": ("pyright-langserver", "--stdio"),
    "typescript": ("typescript-language-server", "--stdio"),
}


def suffixes_of(language: str) -> dict[str, str]:
    """Return the ends of the files of a language, each with its `languageId`.

    A language such as `.vue` is that of the files which end so.
    """
    return {language: language[1:]} if language.startswith(".") else LANGUAGES[language]


def language_id(language: str, path: str) -> str:
    """Return what the protocol calls the language of a file."""
    return suffixes_of(language)[os.path.splitext(path)[1].lower()]


def default_server(language: str, path: str) -> list[str] | None:
    """Return the words that start the usual server of a language, if it is installed.

    Args:
        language: A name of `LANGUAGES`.
        path: The folders where programs are looked for, as in PATH.
    """
    words = DEFAULTS.get(language)
    if words is None:
        return None
    # The extra `lsp` puts it beside the Python that runs this, which may be in no folder of PATH.
    folders = (path, os.path.dirname(sys.executable))
    found = shutil.which(words[0], path=os.pathsep.join(folders))
    return None if found is None else [found, *words[1:]]


def found_program(name: str, path: str) -> str | None:
    """Return the absolute path of a program; None if there is none."""
    return shutil.which(os.path.expanduser(name), path=path)


def program_folders(program: str) -> Iterable[str]:
    """Yield the folders that a program is in, and the packages of npm or Python beside it.

    A program in a `bin` is as a rule a link into a package.
    """
    for path in dict.fromkeys((program, os.path.realpath(program))):
        folder = Path(path).parent
        yield os.fspath(folder)
        if (folder.parent / "pyvenv.cfg").is_file():
            yield os.fspath(folder.parent)
        for above in folder.parents:
            if above.name == "node_modules":
                yield os.fspath(above)
