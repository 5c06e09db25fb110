"""`toolbus host` with factories: flags, variables, help and errors of their configs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.command_line import CommandLine

SHOPS = '''
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal
from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator
from toolbus import OperatorOnly, Toolkit

class Colour(Enum):
    RED = "red"
    BLUE = "blue"

class Shop(BaseModel):
    database: Annotated[Path, OperatorOnly] = Field(description="Where the goods are.")
    key: SecretStr | None = None
    level: Literal[1, 2] = 1
    colour: Colour = Colour.RED
    tags: list[str] = []
    prices: dict[str, float] = {}
    open_late: bool = Field(False, description="Also at night.")
    room: int | None = None
    secret_name: str = Field("", alias="secretName")

    @field_validator("key")
    @classmethod
    def check_key(cls, key: SecretStr) -> SecretStr:
        if len(key.get_secret_value()) < 12:
            raise ValueError(f"{key.get_secret_value()} is too short")
        return key

    @model_validator(mode="after")
    def check_all(self) -> "Shop":
        if self.open_late and self.level == 2:
            raise ValueError("level 2 closes at night")
        return self

def shop(config: Shop) -> Toolkit:
    """It shows its config instead of a toolkit."""
    raise ValueError(config.model_dump_json(exclude_defaults=True))

class Stall(BaseModel):
    tags: list[str] = []

def stall(config: Stall) -> Toolkit:
    return Toolkit("stall", description=",".join(config.tags))

def closed(config: Stall):
    raise AssertionError("a function without -> Toolkit was run")

def vague(config, unit) -> Toolkit: ...

async def late(config: Stall) -> Toolkit: ...
'''


def of_shop(variables: dict[str, str]) -> dict[str, str]:
    return {f"TOOLBUS_SHOP_{name}": each for name, each in variables.items()}


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("factories")
    (folder / "shops.py").write_text(SHOPS, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        yield here.at(url)


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        (["--database", "a.db"], {}, {"database": "a.db"}),
        ([], {"DATABASE": "b.db"}, {"database": "b.db"}),
        (["--shop-database=c.db"], {"DATABASE": "b.db"}, {"database": "c.db"}),
        (["--database", "d", "--tags", "x", "--tags", "y,z"], {}, {"tags": ["x", "y,z"]}),
        (["--database", "d"], {"TAGS": "x, y"}, {"tags": ["x", "y"]}),
        (["--database", "d"], {"TAGS": '["x,y"]'}, {"tags": ["x,y"]}),
        (["--database", "d", "--open-late"], {}, {"open_late": True}),
        (["--database", "d", "--no-open-late"], {"OPEN_LATE": "on"}, {}),
        (
            ["--database", "d", "--level", "2", "--colour", "blue"],
            {},
            {"level": 2, "colour": "blue"},
        ),
        (["--database", "d", "--prices", '{"nut": 1.5}'], {}, {"prices": {"nut": 1.5}}),
        (["--database", "d", "--shop-room", "7", "--room", "main"], {}, {"room": 7}),
        (["--database", "d", "--secret-name", "n"], {}, {"secret_name": "n"}),
        (["--database", "d"], {"KEY": "a long secret"}, {"key": "**********"}),
    ],
)
def test_fields_come_from_flags_and_variables(
    toolbus: CommandLine,
    arguments: list[str],
    variables: dict[str, str],
    expected: dict[str, object],
) -> None:
    outcome = toolbus.run_here("host", *arguments, "shops:shop", **of_shop(variables))
    assert outcome.code == 2
    found = json.loads("{" + outcome.err.partition("{")[2].partition("} (")[0] + "}")
    assert found == {"database": found["database"], **expected}


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ([], {}, "toolkit shop needs --database or TOOLBUS_SHOP_DATABASE"),
        (["--level", "3"], {}, "--level: Input should be 1 or 2"),
        ([], {"LEVEL": "x"}, "TOOLBUS_SHOP_LEVEL: Input should be 1 or 2"),
        (["--shop-room", "x"], {}, "--shop-room: Input should be a valid integer"),
        (["--prices", "{"], {}, "--prices: must be JSON"),
        (["--prices", '{"nut": "x"}'], {}, "--prices at /nut: Input should be a valid number"),
        (["--key", "pass"], {}, "--key: is not valid"),
        ([], {"KEY": "pass"}, "TOOLBUS_SHOP_KEY: is not valid"),
        (
            ["--database", "d", "--open-late", "--level", "2"],
            {},
            "toolkit shop: level 2 closes at night",
        ),
    ],
)
def test_bad_value_names_its_flag_or_variable_and_never_a_secret(
    toolbus: CommandLine, arguments: list[str], variables: dict[str, str], message: str
) -> None:
    outcome = toolbus.run_here("host", "shops:shop", *arguments, **of_shop(variables))
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert "pass" not in outcome.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shops:shop", "shops:stall", "--tags", "x"], "write --shop-tags or --stall-tags"),
        (["shops:shop", "--databse", "x"], "--database"),
        (["shops:closed"], "closed is a tool, not a toolkit"),
        (["shops:closed", "--tags", "x"], "of a factory write the return annotation, `-> Toolkit`"),
        (["shops:vague", "--tags", "x"], "shops:vague requires config, unit: a factory has one"),
        (["shops:late", "--tags", "x"], "shops:late is async: write a plain function"),
        (["nothing", "--database", "x"], "no installed toolkit is named 'nothing'"),
        (["shops:nothing", "--database", "x"], "cannot load shops:nothing"),
    ],
)
def test_flags_of_no_toolkit_or_of_several_are_refused(
    toolbus: CommandLine, arguments: list[str], message: str
) -> None:
    outcome = toolbus.run_here("host", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in " ".join(outcome.err.replace("│", " ").split())


def test_long_flags_tell_toolkits_apart(toolbus: CommandLine) -> None:
    flags = ["--stall-tags", "x", "--shop-tags", "y", "--database", "d"]
    outcome = toolbus.run_here("host", "shops:stall", "shops:shop", *flags)
    assert '{"database":"d","tags":["y"]}' in outcome.err


def test_help_shows_the_flags_of_the_toolkits_that_are_named(toolbus: CommandLine) -> None:
    shown = " ".join(toolbus.run_here("host", "shops:shop", "--help").out.split())
    for text in ("Toolkit shop", "--database", "Where the goods are. Required.", "[red|blue]"):
        assert text in shown
    assert "[TOOLBUS_SHOP_DATABASE]" in shown
    assert "--no-open-late" in shown
    assert "--shop-room" in shown  # `--room` is a flag of the command
    assert "--shop-database" not in shown  # it would leave no room for the short form
    assert "Toolkit" not in toolbus.run_here("host", "--help").out.replace("Toolkits", "")
    unknown = toolbus.run_here("host", "shops:nothing", "--help")
    assert "the flags of shops:nothing are not known: AttributeError" in unknown.err


def test_installed_sql_takes_its_file_from_a_flag(toolbus: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "items.db"
    file.touch()
    with toolbus.hosting("sql", "--database", str(file), "clock", "--timezone", "Asia/Tokyo"):
        assert toolbus.value_here("call", "sql.list_tables")["tables"] == []
        assert toolbus.run_here("call", "clock.now").out.strip().endswith("+09:00")
