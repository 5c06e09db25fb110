"""The fixture `toolbus_room`: with other plugins of pytest, and in a run that does not use it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import PATIENCE_S

_SYNC = """
from toolbus import Toolkit, tool

@tool
async def double(number: int) -> int:
    return 2 * number

kit = Toolkit("t", [double])

def test_sync(toolbus_room):
    toolbus_room.host(kit)
    assert toolbus_room.connect("ann").call("t.double", number=2) == 4
"""
_ASYNC = """
async def test_async(toolbus_room):
    async with toolbus_room.room("host") as host, host.host(kit), toolbus_room.room("ann") as ann:
        assert await ann.call("t.double", number=2) == 4
    toolbus_room.host(kit)
    async with toolbus_room.room("ann") as ann:
        assert await ann.call("t.double", number=3) == 6
"""
_IN_ASYNCIO_RUN = """
import asyncio
from toolbus_server.testing import room_of

def test_with_a_loop_of_its_own():
    async def main():
        async with room_of("host", "ann") as lab, lab["host"].host(kit):
            assert await lab["ann"].call("t.double", number=2) == 4
    asyncio.run(main())
"""
_SCOPE = "asyncio_default_fixture_loop_scope=function"
_NO_PLUGINS = ("-p", "no:asyncio", "-p", "no:anyio")


def run_pytest(folder: Path, text: str, *options: str) -> str:
    """Run a file of tests in a process of its own, where warnings are errors; all have to pass."""
    (folder / "test_it.py").write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", *options, "test_it.py"]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("text", "options", "passed"),
    [
        (_SYNC + _IN_ASYNCIO_RUN, _NO_PLUGINS, 2),
        (
            f"{_SYNC}\nimport pytest\n\n@pytest.mark.asyncio{_ASYNC}",
            ("-o", "asyncio_mode=strict", "-o", _SCOPE),
            2,
        ),
        (_SYNC + _ASYNC, ("-o", "asyncio_mode=auto", "-o", _SCOPE), 2),
        (
            f"{_SYNC}\nimport pytest\n\n"
            "@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n\n"
            f"@pytest.mark.anyio{_ASYNC}",
            ("-p", "no:asyncio"),
            2,
        ),
    ],
    ids=["without plugins", "asyncio strict", "asyncio auto", "anyio"],
)
def test_the_fixture_serves_tests_with_and_without_a_loop(
    tmp_path: Path, text: str, options: tuple[str, ...], passed: int
) -> None:
    assert f"{passed} passed" in run_pytest(tmp_path, text, *options)


def test_a_run_without_the_fixture_imports_the_plugin_and_nothing_else(tmp_path: Path) -> None:
    text = (
        "import json, sys\nfrom pathlib import Path\n\n"
        "def test_it():\n    Path('modules.json').write_text(json.dumps(sorted(sys.modules)))\n"
    )

    def modules(*options: str) -> set[str]:
        run_pytest(tmp_path, text, *_NO_PLUGINS, *options)
        return set(json.loads((tmp_path / "modules.json").read_text(encoding="utf-8")))

    modules()  # writes the bytecode: without it more is imported
    imported = modules()
    assert imported - modules("-p", "no:toolbus") == {"pytest_toolbus"}
    assert imported.isdisjoint({"toolbus", "toolbus_server"})


def test_a_missing_extra_is_named_where_the_fixture_is_used(tmp_path: Path) -> None:
    text = (
        "import sys\nimport pytest\n\n"
        "@pytest.fixture\ndef without_server(monkeypatch):\n"
        "    monkeypatch.setitem(sys.modules, 'rfc8785', None)\n\n"
        "@pytest.fixture\ndef caught(without_server, request):\n"
        "    with pytest.raises(ModuleNotFoundError, match=r'pip install .toolbus.server.'):\n"
        "        request.getfixturevalue('toolbus_room')\n\n"
        "def test_it(caught): ...\n"
    )
    run_pytest(tmp_path, text, *_NO_PLUGINS)
