"""The picture of README.md shows what is printed when a host is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.documents.killed_host import PICTURE, drawn, lines_of, play
from support.documents.snippets import settled


@pytest.mark.long
@pytest.mark.timeout(300)
def test_picture_shows_what_a_killed_host_leads_to(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    shown = lines_of(PICTURE.read_text(encoding="utf-8"))
    printed = play(tmp_path, variables)
    assert settled("\n".join(shown)) == settled("\n".join(filter(None, printed)))


def test_picture_is_small_and_needs_nothing_else() -> None:
    picture = PICTURE.read_text(encoding="utf-8")
    assert len(picture) < 8_000
    assert "<title" in picture
    assert "executed: maybe" in picture.partition("</desc>")[0]
    for word in ("script", "href", "@font-face", "url("):
        assert word not in picture.replace("aria-labelledby", "")
    lines = ["$ a  b", "executed=yes <&>"]
    assert lines_of(drawn(lines)) == lines
