"""The toolkit `lsp` on projects as they are published: Starlette with its environment, RxJS."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from support.pytest_plugins.missing_parts import not_verified
from support.rooms.events import until
from toolbus import Turn
from toolbus_toolkits.lsp import Lsp

Call = Callable[..., Coroutine[Any, Any, Any]]


def _run(*words: str | Path) -> bool:
    done = subprocess.run(words, capture_output=True, timeout=300, check=False)
    return done.returncode == 0


@pytest.fixture(scope="module")
def starlette(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Starlette, with its dependencies in the folder `.venv` of the project."""
    folder = tmp_path_factory.mktemp("python") / "project"
    pip = [sys.executable, "-m", "uv", "pip"]
    _run(sys.executable, "-m", "uv", "venv", "--python", sys.executable, folder / ".venv")
    python = folder / ".venv" / "bin" / "python"
    if not _run(*pip, "install", "--python", python, "starlette==0.47.0"):
        not_verified("lsp on a Python project", "its packages cannot be installed")
    (package,) = folder.glob(".venv/lib/*/site-packages/starlette")
    shutil.move(package, folder / "starlette")
    return folder


@pytest.fixture(scope="module")
def rxjs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RxJS, with TypeScript, its language server and its dependencies in `node_modules`."""
    npm = shutil.which("npm")
    if npm is None:
        not_verified("lsp on a TypeScript project", "no npm is here", ci_has_it=False)
    folder = tmp_path_factory.mktemp("typescript") / "project"
    folder.mkdir()
    names = ("rxjs@7.8.2", "typescript@5.9", "typescript-language-server@5")
    options = ("--silent", "--no-fund", "--no-audit", "--prefix")
    if not _run(npm, "install", *options, folder, *names):
        not_verified("lsp on a TypeScript project", "npm cannot install it", ci_has_it=False)
    shutil.move(folder / "node_modules" / "rxjs" / "src", folder / "src")
    options_of_compiler = {"strict": True, "target": "es2020", "moduleResolution": "bundler"}
    config = {"compilerOptions": options_of_compiler, "include": ["src"]}
    (folder / "tsconfig.json").write_text(json.dumps(config))
    return folder


def _place(file: Path, text: str) -> dict[str, int]:
    """Return the line and the column where a text is first in a file."""
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if text in line:
            return {"line": number, "column": line.index(text) + 1}
    raise AssertionError(f"{text!r} is not in {file}")


async def test_a_python_project_with_a_virtual_environment(starlette: Path) -> None:
    file = starlette / "starlette" / "concurrency.py"
    async with Turn(None, always=[Lsp(starlette)]) as turn:
        found = await turn.call("lsp.symbols", query="run_in_threadpool")
        (symbol,) = [each for each in found["symbols"] if each["name"] == "run_in_threadpool"]
        assert symbol["path"] == "starlette/concurrency.py"
        uses = await turn.call(
            "lsp.references", **{key: symbol[key] for key in ("path", "line", "column")}
        )
        paths = {each["path"] for each in uses["locations"]}
        assert {"starlette/concurrency.py", "starlette/routing.py"} <= paths

        at = {"path": "starlette/concurrency.py", **_place(file, "run_sync(")}
        found = await turn.call("lsp.definition", **at)
        (there,) = found["locations"]
        assert there["path"].endswith("site-packages/anyio/to_thread.py")
        assert there["text"] == "async def run_sync("
        found = await turn.call("lsp.diagnostics", path="starlette/concurrency.py")
        assert [each for each in found["diagnostics"] if each["severity"] == "error"] == []


async def test_a_typescript_project_and_a_server_that_is_killed_in_a_call(rxjs: Path) -> None:
    programs = rxjs / "node_modules" / ".bin"
    toolkit = Lsp(rxjs, servers={"typescript": f"{programs}/typescript-language-server --stdio"})
    at = {"path": "src/internal/operators/map.ts"}
    at |= _place(rxjs / at["path"], "operate(")  # type: ignore[arg-type]
    async with Turn(None, always=[toolkit]) as turn:

        async def diagnostics(path: str) -> list[Any]:
            found: list[Any] = (await turn.call("lsp.diagnostics", path=path))["diagnostics"]
            return found

        (there,) = (await turn.call("lsp.definition", **at))["locations"]
        assert there["path"] == "src/internal/util/lift.ts"
        # Those of a function with some hundred uses: the answer takes a while.
        (slot,) = toolkit._servers._slots.values()
        killed = slot.server
        assert killed is not None
        calling = asyncio.create_task(turn.call("lsp.references", **at))
        await until(lambda: bool(killed._asked))
        os.killpg(killed._program.pid, 9)
        found = await calling
        assert killed.has_ended
        assert "src/internal/operators/filter.ts" in {each["path"] for each in found["locations"]}

        file = rxjs / "src" / "internal" / "operators" / "map.ts"
        file.write_text(file.read_text().replace("let index = 0", "let index = 'no'"))
        found = await turn.call("lsp.diagnostics", path=at["path"])
        assert "error" in {each["severity"] for each in found["diagnostics"]}
        assert {each["source"] for each in found["diagnostics"]} == {"typescript"}
        file.write_text("import { late } from './late';\nexport const found: number = late;\n")
        codes = [each["code"] for each in (await diagnostics(at["path"]))]
        assert codes == ["2307"]  # there is no such module
        (file.parent / "late.ts").write_text("export const late = 'text';\n")
        assert [each["code"] for each in (await diagnostics(at["path"]))] == ["2322"]
