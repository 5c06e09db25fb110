"""Which of several sources of a token counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolbus.settings import RoomSettings


@pytest.mark.parametrize("empty", ["", " \n"])
async def test_empty_token_variable_is_as_if_it_were_not_set(tmp_path: Path, empty: str) -> None:
    path = tmp_path / "token.jwt"
    path.write_text("of.the.file\n", encoding="ascii")
    environ = {
        "TOOLBUS_HOME": str(tmp_path),
        "TOOLBUS_TOKEN": empty,
        "TOOLBUS_TOKEN_FILE": str(path),
    }
    settings = RoomSettings.resolve(environ=environ)
    assert await settings.token() == "of.the.file"

    del environ["TOOLBUS_TOKEN_FILE"]
    with pytest.raises(ValueError, match="no token"):
        RoomSettings.resolve(environ=environ)
