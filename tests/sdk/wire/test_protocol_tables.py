"""The tables of PROTOCOL.md compared with the code that they describe."""

from __future__ import annotations

import re
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from toolbus.auth.grants import AgentsGrant, ApiScope
from toolbus.errors import ERRORS, Executed, RoomException
from toolbus.wire import (
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_MANIFEST_DEPTH,
    MAX_MANIFEST_VALUES,
    MAX_TOOL_BYTES,
    MAX_TOOL_VALUES,
    MAX_TOOLS,
)
from toolbus.wire.frames import FROM_CLIENT, FROM_SERVER, KINDS, PROTOCOL_VERSION
from toolbus.wire.manifest import ToolkitManifest, ToolManifest
from toolbus_server.limits import Limits
from toolbus_server.registry.call_checks import CALL_OPTION_TYPES

_TEXT = (Path(__file__).parents[3] / "sdk/toolbus/wire/PROTOCOL.md").read_text(encoding="utf-8")
_TYPE_NAMES = {
    int: "int",
    str: "str",
    bool: "bool",
    bytes: "bin",
    dict: "map",
    list: "list",
    float: "float",
}

_NAMES = {"ListToolkits": "list", "StreamChunk": "chunk", "AssessDispatch": "assess_dispatch"}


def _rows(heading: str) -> list[list[str]]:
    """Return the rows of the first table below a line that begins so."""
    after = _TEXT.split(f"\n{heading}", 1)[1]
    table = re.search(r"(?:^ *\|.*\n)+", after, re.MULTILINE)
    assert table is not None
    lines = table.group().splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines]


def _hint(hint: Any) -> str:
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    *types, last = (get_origin(member) or member for member in members)
    return f"{_TYPE_NAMES[types[0]]}?" if types else _TYPE_NAMES[last]


def test_table_of_kinds_matches_the_frames() -> None:
    """FRAME-3."""
    written = {
        int(kind): (name, by, fields) for kind, name, by, fields in _rows("## 5. Kinds\n\nC: cl")
    }
    built: dict[int, tuple[str, str, str]] = {}
    for frame, kind in KINDS.items():
        name = _NAMES.get(frame.__name__, frame.__name__.lower())
        by = " ".join(["C"] * (frame in FROM_CLIENT) + ["S"] * (frame in FROM_SERVER))
        hints = get_type_hints(frame)
        fields = ", ".join(f"`{each}` {_hint(hints[each])}" for each in frame.__struct_fields__)
        built[kind] = (name, by, fields)
    assert written == built


def test_table_of_versions_ends_with_ours_and_names_every_kind_once() -> None:
    """GROW-1, GROW-2: everything in the first version remains; a new kind gets a new number."""
    rows = _rows("- **GROW-2**")
    assert [int(version) for version, _, _ in rows] == list(range(1, PROTOCOL_VERSION + 1))
    kinds = [kind for _, _, ranges in rows for kind in _numbers(ranges)]
    assert sorted(kinds) == sorted(KINDS.values())
    assert _numbers(rows[0][2]) == [
        *range(1, 5),
        16,
        17,
        18,
        *range(32, 37),
        38,
        39,
        *range(48, 53),
    ]


def _numbers(ranges: str) -> list[int]:
    found: list[int] = []
    for part in () if ranges == "none" else ranges.split(", "):
        first, _, last = part.partition(" to ")
        found += range(int(first), int(last or first) + 1)
    return found


def test_table_of_errors_matches_the_error_classes() -> None:
    """ERR-1."""
    written: dict[str, tuple[str, str]] = {}
    for codes, executed, retryable in _rows("- **ERR-1**"):
        written |= dict.fromkeys(re.findall(r"`(\w+)`", codes), (executed, retryable))
    assert written.keys() == ERRORS.keys()
    for code, (executed, retryable) in written.items():
        _check_error(ERRORS[code], executed, retryable)


def _check_error(error: type[RoomException], executed: str, retryable: str) -> None:
    by_itself = error()
    if executed in get_args(Executed):
        assert by_itself.executed == executed, error
    else:
        assert by_itself.executed == "maybe", error
    assert error(executed="no").retryable == (retryable in {"yes", 'if "no"', _OR_IDEMPOTENT}), (
        error
    )
    assert error(executed="maybe").retryable == (retryable == "yes"), error


_OR_IDEMPOTENT = 'if "no", or idempotent'


@pytest.mark.parametrize(
    ("heading", "model"), [("The manifest of", ToolkitManifest), ("| `tools` | list", ToolManifest)]
)
def test_tables_of_the_manifest_have_its_fields_and_defaults(
    heading: str, model: type[ToolkitManifest | ToolManifest]
) -> None:
    """REG-5: fields at their default do not change the digest, so the defaults are a rule."""
    defaults: dict[str, str] = {}
    for names, kind, *_ in _rows(heading):
        for name in re.findall(r"`(\w+)`", names):
            defaults[name] = _TEXT_DEFAULTS.get(name, kind) if kind == "as above" else kind
    assert defaults.keys() == model.model_fields.keys()
    for name, field in model.model_fields.items():
        if field.is_required():
            assert "required" in defaults[name]
            continue
        default = field.get_default(call_default_factory=True)
        words = {"()": "[]", "''": '""', "None": "nil", "False": "false", "'none'": '"none"'}
        assert words.get(repr(default), repr(default)) in defaults[name].replace("`", ""), name


_TEXT_DEFAULTS = {
    "title": '`""`',
    "description": '`""`',
    "rules": "`[]`",
    "thumbnail_url": '`""`',
}


def test_all_keys_of_options_limits_and_grants_are_documented() -> None:
    """FRAME-13, TOKEN-5, TRACE-1."""
    options = next(row[1] for row in _rows("Keys of the map") if row[0] == "call `options`")
    written = dict(re.findall(r"`(\w+)` (\w+)", options))
    assert written.pop("tracestate") == "str"  # absent where it is of another type: TRACE-1
    assert written == {name: _TYPE_NAMES[kind] for name, kind in CALL_OPTION_TYPES.items()}
    facts = next(row[1] for row in _rows("Keys of the map") if row[0] == "welcome `facts`")
    assert set(Limits().to_wire()) <= set(re.findall(r"`(\w+)`", facts))
    claims = _TEXT.split("**TOKEN-5**")[1].split("## 4")[0]
    assert {*AgentsGrant.__annotations__, *ApiScope.__annotations__} <= set(
        re.findall(r"`(\w+)`", claims)
    )


def test_limits_are_the_numbers_that_the_rules_name() -> None:
    """FRAME-4, FRAME-5, FRAME-6, REG-2, CALL-15."""
    limits = Limits()
    assert (limits.max_frame_bytes, MAX_FRAME_BYTES) == (2**20, 2**20)
    assert (limits.max_header_bytes, MAX_HEADER_BYTES) == (2**16, 2**16)
    assert (limits.max_depth, MAX_DEPTH) == (32, 32)
    assert (MAX_TOOLS, MAX_MANIFEST_BYTES, MAX_MANIFEST_DEPTH) == (1_000, 2**20, 31)
    assert (MAX_TOOL_BYTES, MAX_TOOL_VALUES, MAX_MANIFEST_VALUES) == (2**18, 2**16, 2**17)
    assert limits.max_hops == 16
