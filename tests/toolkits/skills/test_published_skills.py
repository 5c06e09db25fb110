"""Skills that others published, as they are: fetched by npm when the test runs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support.processes.node_js_client import node_command
from support.pytest_plugins.missing_parts import not_verified
from toolbus_toolkits.skills import Skills


def _fetched(package: str, folder: Path) -> Path:
    """Return the folder of the unpacked package."""
    _, npm = node_command()
    command = [*npm, "pack", package, "--ignore-scripts", "--loglevel=error", "--fetch-retries=1"]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, timeout=90, check=True)
    except (OSError, subprocess.SubprocessError):
        not_verified("published skills", f"npm did not fetch {package}", ci_has_it=False)
    (archive,) = folder.glob("*.tgz")
    # Python 3.11.2, Debian's, has no safe `tarfile.extractall` yet.
    subprocess.run(["tar", "--extract", "--file", archive], cwd=folder, timeout=60, check=True)
    return folder / "package" / "skills"


@pytest.mark.parametrize(
    ("package", "number", "folder", "described"),
    [
        ("@elizaos/skills@2.0.0-beta.1", 34, "tmux", "Remote-control tmux sessions"),
        ("@plaited/development-skills@0.8.1", 5, "typescript-lsp", "Search TypeScript SYMBOLS"),
    ],
)
def test_published_skills_are_listed_and_read(
    tmp_path: Path, package: str, number: int, folder: str, described: str
) -> None:
    source = _fetched(package, tmp_path)
    texts = {each.parent.name: each.read_text() for each in source.glob("*/SKILL.md")}
    found = Skills([source])
    assert found.skipped == ()
    assert len(found.list()) == len(texts) == number
    for skill in found.list():
        text = texts[skill.base_dir.name]
        assert re.search(rf"^name: ['\"]?{re.escape(skill.name)}['\"]?\s*$", text, re.MULTILINE)
        assert text.endswith(found.view(skill.name).text)
    assert described in found.get(folder).description
