"""What the guides about deploying show: commands, the answers to calls, and local images."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.documents.snippets import blocks_of, steps_of

__all__ = [
    "BY_HAND",
    "FOR_KUBERNETES",
    "GUIDE",
    "HOSTS",
    "TYPED",
    "TYPED_FOR_MANY",
    "calls_in",
    "check_answers",
    "hosts_in",
    "local_images",
]

_GUIDES = Path(__file__).parents[3] / "docs" / "guides"
GUIDE = (_GUIDES / "deploy.md").read_text(encoding="utf-8")
HOSTS = {"clock": "1", "sql": "2"}
"""The toolkits of both compose files, and the number of their hosts."""
BY_HAND = "docker compose run --rm toolbus "


def _typed_in(section: str) -> list[str]:
    return [
        step.command
        for block in blocks_of(section)
        if block.language == "console"
        for step in steps_of(block)
    ]


# Below that heading it is about processes, which test_without_containers.py types.
_WITH_COMPOSE = GUIDE.partition("\n## Without Docker\n")[0]
TYPED, TYPED_FOR_MANY = map(_typed_in, _WITH_COMPOSE.split("\n## Three servers\n"))
FOR_KUBERNETES = _typed_in(GUIDE.partition("\n## Kubernetes\n")[2].partition("\n## ")[0])


def calls_in(typed: list[str]) -> list[str]:
    """Return the commands that look around and call."""
    return [each for each in typed if each.startswith(BY_HAND)]


def hosts_in(table: str) -> dict[str, str]:
    """Read the number of hosts of each toolkit from the output of `toolbus tools`."""
    rows = [re.split(r"\s{2,}", line) for line in table.splitlines()[1:]]
    return {row[0]: row[3] for row in rows}


def check_answers(table: str, clock: str, query: str) -> None:
    """Check the output of the three commands of the first section that look around and call."""
    assert hosts_in(table) == HOSTS
    assert re.match(r"\d{4}-\d\d-\d\dT", clock)
    assert len(json.loads(query)["rows"]) == 3


def local_images() -> dict[str, str]:
    """Return the variables that the page about machines without a registry sets."""
    page = (_GUIDES / "without-a-registry.md").read_text(encoding="utf-8")
    exports = [each for each in _typed_in(page) if each.startswith("export ")]
    return dict(each.removeprefix("export ").split("=", 1) for each in exports)
