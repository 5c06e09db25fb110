"""What an exception of others says to people: words without machinery, and a line of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from toolbus.commands.host import find_toolkit
from toolbus.commands.plain_words import plain_words
from toolbus.exit_codes import UsageMistake


class Settings(BaseModel):
    size: int
    unit: str


def complaint(schema: Any, value: object) -> str:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(schema).validate_python(value)
    return plain_words(caught.value)


def test_each_complaint_of_pydantic_is_told_with_its_place() -> None:
    words = complaint(Settings, {"size": "a secret"})
    assert words.startswith("size: Input should be a valid integer")
    assert words.endswith("; unit: Field required")
    assert "secret" not in words


def test_complaints_beyond_a_few_are_counted() -> None:
    assert complaint(list[int], ["a"] * 10).endswith("; 7 more")


def test_other_errors_say_what_they_say() -> None:
    assert plain_words(ValueError("too small")) == "too small"


def why_not(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(UsageMistake) as caught:
        find_toolkit(f"{name}:kit")
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import json\njson.loads('{')", "JSONDecodeError: Expecting property name"),
        ("\nimport missing_from_here", "ModuleNotFoundError: No module named 'missing_from_here'"),
        ("from toolbus import Toolkit\nkit = Toolkit('A B')", "a toolkit name is a lower-case"),
    ],
)
def test_module_that_fails_is_told_with_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    name = f"fails_{abs(hash(text))}"
    told = why_not(tmp_path, monkeypatch, name, text)
    assert told.startswith(f"cannot load {name}:kit: {words}")
    assert told.endswith(f" ({name}.py:2)")


def test_module_that_is_no_python_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = why_not(tmp_path, monkeypatch, "no_python", "def (:")
    assert told.count("no_python.py") == 1
    assert told.endswith("(no_python.py, line 1)")


def test_attribute_that_is_not_there_has_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = why_not(tmp_path, monkeypatch, "has_none", "size = 7")
    assert told.endswith("has no attribute 'kit'")
