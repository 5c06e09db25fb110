"""What a release consists of: the files of wheel and sdist, their metadata, and the workflow."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

ROOT = Path(__file__).parents[1]
FOLDERS = ("sdk", "room_server", "toolkits")
URL = "https://host.test/owner/toolbus"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("dist", ROOT / ".ci" / "dist.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_wheel_and_sdist_contain_the_packages_and_the_pytest_plugin_and_nothing_else() -> None:
    packages = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    wheel, sdist = (
        {file.distribution_path for file in builder(str(ROOT)).recurse_included_files()}
        for builder in (WheelBuilder, SdistBuilder)
    )

    assert {"toolbus/py.typed", "toolbus/wire/PROTOCOL.md", "toolbus_server/py.typed"} <= wheel
    assert "pytest_toolbus.py" in wheel
    assert wheel == {name.partition("/")[2] for name in packages}
    assert sdist == packages | {"README.md", "LICENSE", "CHANGELOG.md"}


def test_metadata_of_a_release_is_valid_and_names_the_repository(
    script: ModuleType, tmp_path: Path
) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    config = tomllib.loads(script.with_urls(text, URL))
    core = ProjectMetadata(str(ROOT), PluginManager(), config).core
    core.validate_fields()

    assert core.urls["Repository"] == URL
    assert all(url.startswith(URL) for url in core.urls.values())
    assert not [each for each in core.classifiers if each.startswith("License ::")]


def test_release_is_built_from_what_is_committed(script: ModuleType, tmp_path: Path) -> None:
    version = script.stage(tmp_path / "source", URL)

    text = (tmp_path / "source" / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    assert (project["version"], project["urls"]["Repository"]) == (version, URL)
    assert not (tmp_path / "source" / ".git").exists()


def test_links_of_the_readme_are_absolute_in_a_release(script: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    changed = script.with_absolute_links(readme, URL, "1.2")

    assert f"]({URL}/blob/v1.2/docs/tutorial.md)" in changed
    assert f"]({URL}/raw/v1.2/docs/killed-host.svg)" in changed
    targets = re.findall(r"\]\(([^)]*)\)", changed)
    assert [each for each in targets if not each.startswith(("https://", "#"))] == []
    assert script.with_absolute_links("[a](https://b.test) [c](#d)", URL, "1.2") == (
        "[a](https://b.test) [c](#d)"
    )


def test_workflow_pins_its_actions_and_only_its_last_step_may_publish() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    used = [step["uses"] for job in (build, publish) for step in job["steps"] if "uses" in step]

    assert all(re.fullmatch(r"[\w./-]+@v\d+\.\d+\.\d+", each) for each in used)
    assert used[-1].startswith("pypa/gh-action-pypi-publish@")
    assert workflow["permissions"] == {"contents": "read"}
    assert (publish["needs"], publish["environment"]) == ("build", "pypi")
    assert publish["permissions"] == {"id-token": "write"}
    # Nothing of the repository runs where something is published.
    assert not [step for step in publish["steps"] if "run" in step]
    assert "secrets." not in text
