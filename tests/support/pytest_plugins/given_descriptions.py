"""The option `--descriptions FOLDER`: host and call every API description in a folder.

A plugin that `make soak` loads, not a part of conftest.py: an option that pytest does not know yet
when it reads the command line would make the folder a place to search for tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--descriptions",
        metavar="FOLDER",
        type=Path,
        help="host and call every API description in a folder, and run nothing else",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of given descriptions, or all others."""
    is_given = config.getoption("--descriptions") is not None
    kept = [
        item for item in items if ("descriptions" in getattr(item, "fixturenames", [])) == is_given
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture
def descriptions(request: pytest.FixtureRequest) -> list[Path]:
    """The files in the folder of `--descriptions`."""
    folder: Path = request.config.getoption("--descriptions")
    return sorted(file for end in ("json", "yaml", "yml") for file in folder.glob(f"*.{end}"))
