"""The precedence of the sources of a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.clients.ending_tokens import lives_for
from toolbus import RoomClient
from toolbus.auth.token_limits import MAX_JWT_BYTES
from toolbus.settings import RoomSettings, is_loopback


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


@pytest.mark.parametrize("encoding", ["ascii", "utf-8-sig", "utf-16"])
async def test_a_token_file_may_begin_with_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "token.jwt"
    path.write_text("of.the.file\r\n", encoding=encoding)
    environ = {"TOOLBUS_HOME": str(tmp_path), "TOOLBUS_TOKEN_FILE": str(path)}
    assert await RoomSettings.resolve(environ=environ).token() == "of.the.file"
    path.write_text(
        "of.the.\N{LATIN SMALL LETTER E WITH ACUTE}", encoding=encoding, errors="replace"
    )
    if encoding != "ascii":
        with pytest.raises(ValueError, match="codec"):
            await RoomSettings.resolve(environ=environ).token()


def settings_with(folder: Path, **variables: str) -> RoomSettings:
    environ = {"TOOLBUS_HOME": str(folder), "TOOLBUS_TOKEN": "e30.e30.t", **variables}
    return RoomSettings.resolve(environ=environ)


def test_drain_time_is_the_variable_then_the_file(tmp_path: Path) -> None:
    assert settings_with(tmp_path).drain_s is None  # what it is then depends on the program
    (tmp_path / "config.toml").write_text("drain = 0\n", encoding="utf-8")
    assert settings_with(tmp_path).drain_s == 0
    assert settings_with(tmp_path, TOOLBUS_DRAIN="2.5").drain_s == 2.5


def test_wait_is_the_variable_then_the_file_then_on(tmp_path: Path) -> None:
    assert settings_with(tmp_path).wait
    (tmp_path / "config.toml").write_text("wait = 'off'\n", encoding="utf-8")
    assert not settings_with(tmp_path).wait
    assert settings_with(tmp_path, TOOLBUS_WAIT="on").wait
    (tmp_path / "config.toml").write_text("wait = true\n", encoding="utf-8")
    with pytest.raises(ValueError, match="wait in the settings file must be 'on' or 'off'"):
        settings_with(tmp_path)


@pytest.mark.parametrize("text", ["-1", "soon", "nan", "inf", "1e999", "1e10", "2592001"])
def test_invalid_drain_time_is_refused_with_the_settings_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="TOOLBUS_DRAIN must be a number of seconds from 0 to 259"):
        settings_with(tmp_path, TOOLBUS_DRAIN=text)


@pytest.mark.parametrize("value", ["true", "'x'", "[1]"])
def test_drain_time_in_the_file_must_be_a_number(tmp_path: Path, value: str) -> None:
    (tmp_path / "config.toml").write_text(f"drain = {value}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="drain in the settings file must be a number of seconds"):
        settings_with(tmp_path)


def test_settings_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f"drain = {'[' * 100_000}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.toml is not a TOML file"):
        settings_with(tmp_path)


def test_home_that_is_no_folder_is_refused_with_the_name_of_the_variable() -> None:
    with pytest.raises(
        ValueError, match=r"TOOLBUS_HOME: cannot read /dev/null/config\.toml: Not a"
    ):
        settings_with(Path("/dev/null"))


async def test_name_and_token_as_arguments_are_refused(tmp_path: Path) -> None:
    """The environment may give a token, which has a name, to a program that sets its own name."""
    nothing = {"TOOLBUS_HOME": str(tmp_path)}
    with pytest.raises(
        ValueError, match="a token contains a name: give either the token or the name 'bob'"
    ):
        RoomSettings.resolve(token="e30.e30.t", name="bob", environ=nothing)
    around = {**nothing, "TOOLBUS_TOKEN": "e30.e30.t"}
    assert await RoomSettings.resolve(name="bob", environ=around).token() == "e30.e30.t"
    settings_with(tmp_path, TOOLBUS_NAME="bob")


async def test_a_name_beside_a_token_is_accepted_where_they_agree(tmp_path: Path) -> None:
    token = lives_for("ann", 60)
    (tmp_path / "ann.jwt").write_text(token)

    async def function() -> str:
        return token

    environ = {"TOOLBUS_HOME": str(tmp_path)}
    for given in (token, f"@{tmp_path}/ann.jwt", tmp_path / "ann.jwt"):
        settings = RoomSettings.resolve(token=given, name="ann", environ=environ)
        assert await settings.token() == token
        with pytest.raises(ValueError, match="give either the token or the name 'Ann'"):
            RoomSettings.resolve(token=given, name="Ann", environ=environ)
    for unknown in (function, tmp_path / "missing", "e30.W10.t", "e30.e30.t"):
        with pytest.raises(ValueError, match="give either the token or the name 'ann'"):
            RoomSettings.resolve(token=unknown, name="ann", environ=environ)


CONTEXTS = """
in_use = "lab"
[context.lab]
url = "ws://lab:1"
token_file = "lab.jwt"
[context.own]
url = "ws://own:2"
room = "attic"
keys = "own.toml"
name = "ann"
[context.bare]
room = "cellar"
"""
VARIABLES = {"TOOLBUS_URL": "ws://var:3", "TOOLBUS_ROOM": "hall", "TOOLBUS_TOKEN_FILE": "var.jwt"}
KEYS = {"TOOLBUS_KEYS": "var.toml", "TOOLBUS_NAME": "bob"}


@pytest.mark.parametrize(
    ("variables", "options", "expected"),
    [
        ({}, {}, ("ws://lab:1", "files", "token_file of context lab", "lab")),
        ({"TOOLBUS_ROOM": "hall"}, {}, ("ws://lab:1", "hall", "token_file of context lab", "lab")),
        (VARIABLES, {}, ("ws://var:3", "hall", "TOOLBUS_TOKEN_FILE", None)),
        (KEYS, {}, ("ws://lab:1", "files", "TOOLBUS_KEYS", "lab")),
        (
            {**VARIABLES, "TOOLBUS_TOKEN": "e30.e30.t", "TOOLBUS_CONTEXT": "lab"},
            {},
            ("ws://lab:1", "files", "token_file of context lab", "lab"),
        ),
        (VARIABLES, {"context": "own"}, ("ws://own:2", "attic", "keys of context own", "own")),
        (
            {"TOOLBUS_CONTEXT": "lab"},
            {"context": "own", "room": "roof"},
            ("ws://own:2", "roof", "keys of context own", "own"),
        ),
        (
            {**VARIABLES, **KEYS},
            {"context": "bare"},
            ("ws://files:4", "cellar", "token_file in the settings file", "bare"),
        ),
    ],
)
def test_setting_comes_from_the_first_source_that_has_it(
    tmp_path: Path,
    variables: dict[str, str],
    options: dict[str, Any],
    expected: tuple[str, str, str, str | None],
) -> None:
    (tmp_path / "contexts.toml").write_text(CONTEXTS, encoding="utf-8")
    config = 'url = "ws://files:4"\nroom = "files"\ntoken_file = "file.jwt"\n'
    (tmp_path / "config.toml").write_text(config, encoding="utf-8")
    environ = {"TOOLBUS_HOME": str(tmp_path), **variables}
    found = RoomSettings.resolve(environ=environ, **options)
    assert (found.url, found.room, found.context) == (*expected[:2], expected[3])
    assert expected[2] in found.token_from


@pytest.mark.parametrize(
    ("text", "context", "message"),
    [
        ("in_use = 1", None, "in_use must be text"),
        ("[context.lab", None, r"contexts\.toml: it is not a TOML file: .* delete it and add the"),
        (f"a = {'[' * 100_000}", None, "it is not a TOML file"),
        ("[context.lab]\ntoken = 'x'", None, "context lab: unknown setting 'token'"),
        ("[context.lab]\nroom = 5", None, "context lab: room must be text"),
        ("[kontext.lab]", None, "unknown setting 'kontext'"),
        ("in_use = 'lab'", None, "the context in use is missing: .*`toolbus context use --none`"),
        ("[context.lab]\nroom = 'a'", "lap", "no context 'lap' in .*: did you mean lab"),
        (None, "lab", "no context 'lab' in .*: `toolbus context list` lists them"),
        (
            "in_use = 'lab'\n[context.lab]\nurl = 'x'",
            None,
            "url of context lab: 'x' is not a server",
        ),
    ],
)
def test_broken_contexts_are_refused_with_the_file_and_what_to_do(
    tmp_path: Path, text: str | None, context: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "contexts.toml").write_text(text, encoding="utf-8")
    environ = {"TOOLBUS_HOME": str(tmp_path)}
    with pytest.raises(ValueError, match=message):
        RoomSettings.resolve(token="e30.e30.t", context=context, environ=environ)


def test_missing_token_names_the_context_of_the_server(tmp_path: Path) -> None:
    lab = "[context.lab]\nurl = 'ws://lab:1'"
    (tmp_path / "contexts.toml").write_text(f"in_use = 'lab'\n{lab}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^context lab: no token: set TOOLBUS_TOKEN"):
        RoomSettings.resolve(environ={"TOOLBUS_HOME": str(tmp_path)})


async def nothing() -> None: ...


DEEP: Any = []
for _ in range(5_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"url": 5}, "url= must be text, not int"),
        ({"room": DEEP}, "room= must be text, not list"),
        ({"token": 5}, "token= must be a token, the path of its file, or an async function"),
        ({"instance": 5}, "instance= must be text, not int"),
        ({"instance": "x" * 129}, "is not an instance"),
        ({"instance": "a\nb"}, "is not an instance"),
    ],
)
async def test_malformed_setting_is_a_value_error(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        await RoomClient(**{"token": "e30.e30.t", **choices}).__aenter__()


def test_instance_of_the_variable_is_checked_too(tmp_path: Path) -> None:
    for text in ("x" * 129, "a\udcffb"):  # the second is what Python makes of other bytes
        with pytest.raises(ValueError, match="is not an instance"):
            settings_with(tmp_path, TOOLBUS_INSTANCE=text)
    assert settings_with(tmp_path, TOOLBUS_INSTANCE="x" * 128).instance == "x" * 128


async def test_space_around_the_text_of_a_function_is_not_part_of_the_token() -> None:
    async def read() -> str:
        return " a.b.c\n"

    assert await RoomSettings.resolve(token=read, environ={}).token() == "a.b.c"


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (lambda: "a.b.c", "token= must be an async function, not one that returns str"),
        (nothing, "the function of token= must return text, not NoneType"),
    ],
)
async def test_function_that_returns_no_token_is_a_type_error(token: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        await RoomClient("ws://127.0.0.1:1", token=token).__aenter__()


@pytest.mark.parametrize(
    "text",
    [
        *("", "@", " ", ".", "/", "ann", "ann.jwt", "./ann.jwt", "~/ann.jwt", "../keys/ann.jwt"),
        *("ann.prod.jwt", "a.b.c", "../a.b", "bnVsbA.e30.x", "W10.e30.x", "e30.e30", "e30.e30.x.y"),
        *(
            "e30.e30.x y",
            "e30.e30.x/y",
            "\u0663.e30.x",
            "a\0b",
            "W1tb" * 9_000 + ".e30.x",
            "a" * 5_000,
        ),
    ],
)
def test_text_that_may_be_the_name_of_a_missing_file_is_no_token(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match="neither a signed token nor the name of a file"
    ) as refused:
        RoomSettings.resolve(token=text, environ={})
    assert len(str(refused.value)) < 200


async def test_file_without_an_end_is_read_in_part() -> None:
    read = await RoomSettings.resolve(token="@/dev/zero", environ={}).token()
    assert len(read) == MAX_JWT_BYTES + 1


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *(("127.0.0.1", True), ("127.0.0.2", True), ("127.200.0.1", True), ("[::1]", True)),
        *(("LOCALHOST", True), ("128.0.0.1", False), ("[::2]", False), ("0.0.0.0", False)),
        *(("127.example.org", False), ("127.0.0.1.example.org", False), ("localhost.x", False)),
    ],
)
def test_loopback_is_all_of_its_addresses_and_no_name_that_begins_like_one(
    host: str, expected: bool
) -> None:
    assert is_loopback(f"ws://{host}:7717") == expected
