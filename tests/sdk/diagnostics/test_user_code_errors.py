"""Error texts for exceptions in user code: short, and with the user's line."""

from __future__ import annotations

from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from toolbus.cli.toolkit_options import find_toolkit
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.diagnostics.user_code_errors import error_text


class Settings(BaseModel):
    size: int
    unit: str


def complaint(schema: Any, value: object) -> str:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(schema).validate_python(value)
    return error_text(caught.value)


def test_each_problem_of_pydantic_has_its_path() -> None:
    expected_message = complaint(Settings, {"size": "a secret"})
    assert expected_message.startswith("size: Input should be a valid integer")
    assert expected_message.endswith("; unit: Field required")
    assert "secret" not in expected_message


def test_further_problems_are_counted() -> None:
    assert complaint(list[int], ["a"] * 10).endswith("; 7 more")


def test_other_errors_keep_their_message() -> None:
    assert error_text(ValueError("too small")) == "too small"


def why_not(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(UsageError) as caught:
        find_toolkit(f"{name}:kit")
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "expected_message"),
    [
        ("import json\njson.loads('{')", "JSONDecodeError: Expecting property name"),
        ("\nimport missing_from_here", "ModuleNotFoundError: No module named 'missing_from_here'"),
        (
            "from toolbus import Toolkit\nkit = Toolkit('A B')",
            "ValueError: 'A B' is not a toolkit name",
        ),
    ],
)
def test_failing_module_is_reported_with_the_users_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected_message: str
) -> None:
    name = f"fails_{abs(hash(text))}"
    received = why_not(tmp_path, monkeypatch, name, text)
    assert received.startswith(f"cannot load {name}:kit: {expected_message}")
    assert received.endswith(f" ({name}.py:2)")


def test_syntax_error_names_its_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received = why_not(tmp_path, monkeypatch, "no_python", "def (:")
    assert received.count("no_python.py") == 1
    assert received.endswith("(no_python.py, line 1)")


def test_missing_attribute_has_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received = why_not(tmp_path, monkeypatch, "has_none", "size = 7")
    assert received.endswith("has no attribute 'kit'")


def test_what_a_ready_made_toolkit_refuses_has_no_class_and_only_the_users_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from toolbus_toolkits.openapi import OpenApiToolkit\n"
        "kit = OpenApiToolkit.from_file('none.yaml')"
    )
    received = why_not(tmp_path, monkeypatch, "has_no_spec", text)
    assert received.endswith(
        "none.yaml: the file cannot be read: No such file or directory (has_no_spec.py:2)"
    )
    assert "Error" not in received
    with pytest.raises(UsageError) as caught:
        find_toolkit("openapi", methodcaller("make", {"spec": "none.yaml"}))
    assert caught.value.message.endswith("No such file or directory")
