"""The documents for users: README.md and the pages of docs/, and the programs in docs/examples."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from support.documents.snippets import Block, blocks_of

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
_RUNNING = re.compile(r"^<!-- running: (?P<commands>.+) -->$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """One document.

    A line `<!-- running: COMMAND | COMMAND -->` makes it a session: its console blocks are typed
    from the first to the last in a folder with all programs of `docs/examples`, while these
    commands run. `nothing` stands for no command.
    """

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> list[Block]:
        return list(blocks_of(self.text))

    def of(self, language: str) -> list[Block]:
        return [block for block in self.blocks if block.language == language]

    @property
    def running(self) -> list[str] | None:
        """The commands that run while the page is typed; None for a page that is not typed."""
        found = _RUNNING.search(self.text)
        if found is None:
            return None
        return [each for each in found["commands"].split(" | ") if each != "nothing"]


@cache
def pages() -> tuple[Page, ...]:
    """Find README.md and every page of docs/."""
    found = (path for path in DOCS.rglob("*.md") if EXAMPLES not in path.parents)
    return tuple(Page(path) for path in (ROOT / "README.md", *sorted(found)))


@cache
def examples() -> dict[str, str]:
    """Read the programs and files that users copy, by file name."""
    kinds = ("py", "json", "jsonl", "toml")
    found = sorted(path for kind in kinds for path in EXAMPLES.glob(f"*.{kind}"))
    return {path.name: path.read_text(encoding="utf-8") for path in found}
