"""Language servers as a toolkit: `definition`, `references`, `hover`, `diagnostics`, `symbols`.

The way of a call: `tools` finds the file, and `servers` the server of its root and language, which
it starts with the first call by `launcher`, in a sandbox if there is one. `documents` then tells
the server what has changed since the last call, and opens the file in it. `server` writes the
question and waits for the answer; `protocol` makes bytes of messages and messages of bytes.
`answers` makes a result of it, with paths from the root and the text of each line.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolbus import Toolkit
from toolbus.bounded_logging import bounded_logger

try:
    import lsprotocol as _  # noqa: F401 - only to say what is missing
except ImportError as error:  # the extra is not installed
    raise ImportError("the toolkit lsp needs more packages: pip install 'toolbus[lsp]'") from error

from toolbus_toolkits.lsp.answers import (
    Diagnostic,
    DiagnosticsResult,
    HoverResult,
    LocationsResult,
    SourceLocation,
    Symbol,
    SymbolsResult,
)
from toolbus_toolkits.lsp.config import LspConfig
from toolbus_toolkits.lsp.tools import LspTools
from toolbus_toolkits.sandbox import SandboxConfig, summary

if TYPE_CHECKING:
    from toolbus import Middleware, Permissions, Records

__all__ = [
    "Diagnostic",
    "DiagnosticsResult",
    "HoverResult",
    "LocationsResult",
    "Lsp",
    "LspConfig",
    "SourceLocation",
    "Symbol",
    "SymbolsResult",
    "lsp",
]

_logger = bounded_logger(__name__)


class Lsp(Toolkit):
    """Code intelligence: definitions, references, types, diagnostics and symbols of a project.

    Its answers come from language servers, one for each folder and language. One is started by the
    first call that needs it, and again if it ends by itself, up to 3 times in 10 minutes. Several
    turns, and a host, may share one object; with the last of them its servers end.

    Args:
        workdir: The folder of the project; relative paths are below it.
        further_roots: Further folders, whose files are reached by absolute paths.
        servers: The command of a server by its language: `{"go": "gopls"}`. By default pyright for
            Python, and typescript-language-server for TypeScript and JavaScript where it is
            installed. A language without a name is meant by the end of its files, such as ".vue".
        settings: What servers get when they ask for the settings of an editor: by section, nested
            or with dots, as in "python.analysis.typeCheckingMode".
        env: Variables that servers get, beside PATH, HOME and such.
        inherit: Names of variables of this process that servers get.
        sandbox: What confines servers: a `SandboxConfig`, or the name of a backend, such as "auto".
            They may read the folders, but for secrets, and change nothing; in bubblewrap the tools
            then only read. Without it they may do what their user may: they run the interpreter
            and the compiler of the project.
        network: Whether confined servers may use the network.
        max_memory_mib: Address space of each process; None means unlimited. Node.js reserves much.
        max_cpu_s: Seconds of processor time of each process; None means unlimited.
        max_file_mib: The largest file that a process may write; None means unlimited.
        name: The name of the toolkit.
        middlewares: As those of a `Toolkit`.
        records: As those of a `Toolkit`.
        policy: As that of a `Toolkit`.

    Raises `ValueError` if a folder does not exist, for an unknown language, for a variable of
    toolbus, for a limit that is out of range, and for the backend docker. Where nothing confines as
    `sandbox` asks, it does not start: that is a `SandboxUnavailable`, whose message says what to
    install or to allow.
    """

    def __init__(  # noqa: PLR0913 - a toolkit's options, and those of its config
        self,
        workdir: str | PathLike[str] = ".",
        *,
        further_roots: Iterable[str | PathLike[str]] = (),
        servers: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        inherit: Iterable[str] = (),
        sandbox: SandboxConfig | str | bool | None = None,
        network: bool = False,
        max_memory_mib: int | None = None,
        max_cpu_s: int | None = None,
        max_file_mib: int | None = None,
        name: str = "lsp",
        middlewares: Iterable[Middleware] = (),
        records: Records | None = None,
        policy: Permissions | None = None,
    ) -> None:
        if not isinstance(further_roots, str):  # of a text, `tuple` would make its letters
            further_roots = tuple(fspath(folder) for folder in further_roots)
        options: dict[str, Any] = {
            "workdir": Path(workdir),
            "further_roots": further_roots,
            "server": servers or (),
            "settings": settings or {},
            "env": dict(env or {}),
            "inherit": inherit,
            "sandbox": sandbox,
            "network": network,
            "max_memory_mib": max_memory_mib,
            "max_cpu_s": max_cpu_s,
            "max_file_mib": max_file_mib,
        }
        tools = LspTools(LspConfig.model_validate(options))
        self._servers = tools.servers
        super().__init__(
            name,
            tools.all,
            title="Language servers",
            description="Finds definitions, uses, types and mistakes in the code of a project.",
            rules=[
                "To find where a name is defined or used, ask here before you search for text:"
                " `symbols` with a query finds the place of a name, and the others start from it.",
                "Check a file with `diagnostics` after you have changed it.",
            ],
            middlewares=middlewares,
            records=records,
            policy=policy,
        )
        self.workdirs = tools.files.roots.folders

    @asynccontextmanager
    async def hosting(self, room: Any) -> AsyncIterator[None]:
        """Say what confines the servers. Raises `LaunchFailed` if one is not installed."""
        self._servers.check_programs()
        backend = await self._servers.probe()
        confined = "not confined: they may do whatever the user of this process may"
        if backend is not None:
            confined = summary(backend)
        languages = ", ".join(self._servers.languages()) or "none is installed"
        _logger.warning("language servers of toolkit %s: %s; %s", self.name, languages, confined)
        yield


def lsp(config: LspConfig) -> Toolkit:
    """Code intelligence: definitions, references, types, diagnostics and symbols of a project.

    It is a factory: `toolbus host lsp --workdir PATH` hosts it, and `builder_of(lsp, workdir=...)`
    offers it to agents, each turn of which has servers of its own.

    Args:
        config: The folders, and the servers for their languages.
    """
    values = dict(config)
    named = (text.partition("=") for text in values.pop("server"))
    return Lsp(**values, servers={language: command for language, _, command in named})
