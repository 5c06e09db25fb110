"""The links of all documents exist, and the site has every page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.documents.pages import DOCS, ROOT, pages

DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part[0] == "." or part == "node_modules" for part in path.relative_to(ROOT).parts)
)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CONFIG = ROOT / "mkdocs.yml"


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _prose(path: Path) -> str:
    return re.sub(r"`[^`\n]*`", "", FENCED.sub("", path.read_text(encoding="utf-8")))


def _is_generated(path: Path) -> bool:
    """Return whether the build of the site adds headings to a page."""
    text = path.read_text(encoding="utf-8")
    return bool(re.search(r"^(::: |<!-- (?:commands|include))", text, re.MULTILINE))


def _anchors(path: Path) -> set[str]:
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+?)(?: \{#([\w-]+)\})?$", text, re.MULTILINE)
    return {own or _slug(title) for title, own in headings}


def _slug(title: str) -> str:
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()
    return re.sub(r"[\s]", "-", re.sub(r"[^\w\s-]", "", plain).strip())


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_relative_links_lead_to_files_and_headings_that_exist(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)", _prose(document)):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (document.parent / file) if file else document
        assert found.exists(), target
        if anchor and found.suffix == ".md" and not _is_generated(found):
            assert anchor in _anchors(found), target


def _nav() -> list[str]:
    class Loader(yaml.SafeLoader):
        """Reads the tags that name Python objects as nothing."""

    Loader.add_multi_constructor("", lambda *_: None)
    nav = yaml.load(CONFIG.read_text(encoding="utf-8"), Loader)["nav"]
    return [*_leaves(nav)]


def _leaves(entry: Any) -> list[str]:
    match entry:
        case str():
            return [entry]
        case dict():
            return [leaf for each in entry.values() for leaf in _leaves(each)]
        case _:
            return [leaf for each in entry for leaf in _leaves(each)]


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page() -> None:
    listed = [entry for entry in _nav() if entry.endswith(".md")]
    assert len(listed) == len(set(listed))
    assert set(listed) == {page.path.relative_to(DOCS).as_posix() for page in pages()[1:]}


def test_changelog_begins_with_unreleased() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[0] == "[Unreleased]"
