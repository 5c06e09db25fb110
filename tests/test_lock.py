"""`.ci/lock`: the versions of packages with which a clone is tested, and how make installs them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKED = re.compile(
    r"^(?P<requirement>[^ #\n][^\\\n]*)\\\n(?P<hashes>(?: +--hash=sha256:.*\n)+)", re.M
)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
BASE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


def locked(extra: str) -> dict[str, Requirement]:
    """Map the name of each package in a lock file to what is locked."""
    text = (ROOT / ".ci" / "lock" / f"{extra}.txt").read_text()
    found = [Requirement(match["requirement"]) for match in LOCKED.finditer(text)]
    assert len(found) == len(re.findall(r"^[^ #\n]", text, re.M)), "each package has hashes"
    assert "://" not in text
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def permitted(*requirements: str) -> dict[str, Requirement]:
    """Map the name of each package that pyproject.toml names to what it permits."""
    found: dict[str, Requirement] = {}
    for requirement in map(Requirement, requirements):
        if requirement.name == "toolbus":
            found |= permitted(*(line for extra in requirement.extras for line in EXTRAS[extra]))
        else:
            found[canonicalize_name(requirement.name)] = requirement
    return found


@pytest.mark.parametrize("extra", ["dev", "demo", "docs"])
def test_lock_has_a_permitted_version_of_each_package_and_what_builds_toolbus(extra: str) -> None:
    lock = locked(extra)
    for name, requirement in permitted(*BASE, *EXTRAS[extra]).items():
        (version,) = lock[name].specifier
        assert requirement.specifier.contains(version.version), f"{requirement}: run `make lock`"
    assert {"hatchling", "editables"} <= lock.keys()


@pytest.mark.parametrize("extra", ["demo", "docs"])
def test_locks_agree_on_versions(extra: str) -> None:
    tested, lock = locked("dev"), locked(extra)
    assert {name for name in lock if name in tested and lock[name] != tested[name]} == set()
    assert "pytest" not in lock


def commands(*options: str) -> str:
    # Without the settings of a make that runs this test.
    command = ["env", "--unset=MAKEFLAGS", "make", "--dry-run", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.stdout


def test_make_installs_the_lock_by_hashes_and_the_newest_versions_without_it(
    tmp_path: Path,
) -> None:
    folder = f"VENV={tmp_path}"
    assert "--require-hashes -r .ci/lock/dev.txt\n" in commands("test", folder)
    assert "--require-hashes -r .ci/lock/demo.txt\n" in commands("demo", folder)
    newest = commands("test", "LOCK=", folder)
    assert (
        "install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'\n" in newest
    )
    assert "--require-hashes" not in newest
    assert ".venv-newest/bin/python -m pytest" in commands("test", "LOCK=")
