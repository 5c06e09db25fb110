"""The precedence of the sources of a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolbus.settings import RoomSettings


@pytest.mark.parametrize("empty", ["", " \n"])
async def test_empty_token_variable_counts_as_unset(tmp_path: Path, empty: str) -> None:
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


def settings_with(folder: Path, **variables: str) -> RoomSettings:
    environ = {"TOOLBUS_HOME": str(folder), "TOOLBUS_TOKEN": "t", **variables}
    return RoomSettings.resolve(environ=environ)


def test_drain_time_is_the_variable_then_the_file_then_ten_seconds(tmp_path: Path) -> None:
    assert settings_with(tmp_path).drain_s == 10
    (tmp_path / "config.toml").write_text("drain = 0\n", encoding="utf-8")
    assert settings_with(tmp_path).drain_s == 0
    assert settings_with(tmp_path, TOOLBUS_DRAIN="2.5").drain_s == 2.5


@pytest.mark.parametrize("text", ["-1", "soon", "nan", "inf", "1e999"])
def test_invalid_drain_time_is_refused_with_the_settings_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="TOOLBUS_DRAIN must be a number of seconds, 0 or more"):
        settings_with(tmp_path, TOOLBUS_DRAIN=text)


@pytest.mark.parametrize("value", ["true", "'x'", "[1]"])
def test_drain_time_in_the_file_must_be_a_number(tmp_path: Path, value: str) -> None:
    (tmp_path / "config.toml").write_text(f"drain = {value}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="drain in the settings file must be a number of seconds"):
        settings_with(tmp_path)


async def test_name_and_token_as_arguments_are_refused(tmp_path: Path) -> None:
    """The environment may give a token, which has a name, to a program that sets its own name."""
    nothing = {"TOOLBUS_HOME": str(tmp_path)}
    with pytest.raises(
        ValueError, match="a token contains a name: give either the token or the name 'bob'"
    ):
        RoomSettings.resolve(token="t", name="bob", environ=nothing)
    around = {**nothing, "TOOLBUS_TOKEN": "t"}
    assert await RoomSettings.resolve(name="bob", environ=around).token() == "t"
    settings_with(tmp_path, TOOLBUS_NAME="bob")
