"""What of an API a room takes: one bad operation never takes the rest away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.web.described_api import echo
from support.web.scripted_server import web_server
from toolbus import InvalidArguments, ToolContext
from toolbus.schemas.foreign import UsableSchema, usable_schema
from toolbus.wire.manifest import MAX_MANIFEST_BYTES, MAX_TOOL_BYTES
from toolbus_server.testing import room_of
from toolbus_toolkits.openapi import ApiOptions, OpenApiToolkit, SpecError, fitting

GOOD: dict[str, Any] = {"/good": {"get": {"operationId": "good", "tags": ["fine"]}}}


def _kit(tmp_path: Path, paths: dict[str, Any], url: str = "", **schemas: Any) -> OpenApiToolkit:
    document = {
        "openapi": "3.1.0",
        "info": {"title": "T", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    file = tmp_path / "api.json"
    file.write_text(json.dumps(document))
    server = url or "http://127.0.0.1:1"
    options = ApiOptions(name="api", server=server, allow_private=True)
    return OpenApiToolkit.from_file(file, options=options)


def _post(name: str, schema: Any, *tags: str) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"post": {"operationId": name, "requestBody": body, "tags": list(tags)}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


LARGE = {"properties": {f"p{n}": {"default": "x" * 3_000} for n in range(MAX_TOOL_BYTES // 3_000)}}


async def test_an_operation_that_no_room_takes_is_left_out_and_named(tmp_path: Path) -> None:
    paths = GOOD | {
        "/large": _post("large", {"type": "object", "properties": {"a": LARGE}}),
        "/shared": _post("shared", {"type": "object", "properties": {"a": _ref("Large")}}),
        "/broken": _post("broken", _ref("None")),
    }
    async with web_server(echo) as server, room_of("host", "alice") as (host, alice):
        kit = _kit(tmp_path, paths, server.url, Large=LARGE)
        async with host.host(kit):
            assert (await alice.call("api.good"))["target"] == "/good"
    assert [tool.name for tool in kit.tools] == ["good"]
    reasons = {each.name: each.reason for each in kit.left_out}
    assert set(reasons) == {"POST /large", "POST /shared", "POST /broken"}
    assert all(
        "and a room takes 262,144" in reasons[f"POST /{name}"] for name in ("large", "shared")
    )
    assert f"POST /large: {reasons['POST /large']}" in kit.skipped
    published: Any = kit.manifest().annotations["left_out"]
    assert {each["name"] for each in published} == set(reasons)


BEYOND = {"type": "integer", "maximum": 2**63, "minimum": -(2**70), "default": 2**80}
STRANGE: dict[str, Any] = {
    "bounds": BEYOND,
    "look-around": {"type": "string", "pattern": r"^(?!\.)a"},
    "many values": {"type": "array", "maxItems": 2, "items": {"enum": list(range(5_000))}},
    "long patterns": {"type": "string", "pattern": r"^[\S\s]{1,255}$"},
    "required of a member": {"type": "string", "required": True},
}


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("place", ["own", "shared"])
async def test_what_cannot_be_checked_costs_its_check_only(
    tmp_path: Path, kind: str, place: str
) -> None:
    member = STRANGE[kind] if place == "own" else _ref("Strange")
    schema = {"type": "object", "properties": {"a": member, "b": {"type": "integer"}}}
    paths = GOOD | {f"/x{number}": _post(f"x{number}", schema) for number in range(3)}
    async with web_server(echo) as server, room_of("host", "alice") as (host, alice):
        kit = _kit(tmp_path, paths, server.url, Strange=STRANGE[kind])
        async with host.host(kit):
            assert (await alice.call("api.good"))["target"] == "/good"
    assert (kit.left_out, len(kit.tools)) == ((), 4)
    with pytest.raises(InvalidArguments, match="/b"):
        kit.get_tool("x1").read_arguments({"b": "text"})


def test_what_is_not_checked_is_named_once_with_its_tools(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": _ref("Strange")}}
    paths = {f"/x{number}": _post(f"x{number}", schema) for number in range(3)}
    kit = _kit(tmp_path, paths, Strange=STRANGE["look-around"])
    [entry] = kit.unchecked
    assert entry.name == "x0"
    assert entry.reason.startswith("/$defs/Strange/pattern: ")
    assert entry.reason.endswith(" (and of 2 more tools)")


@pytest.mark.parametrize("key", ["oneOf", "anyOf"])
@pytest.mark.parametrize("further", [{}, {"/y": _post("y", {"not": _ref("Near")})}])
def test_a_lost_check_makes_no_keyword_refuse_more(
    tmp_path: Path, key: str, further: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": {"a": {key: [_ref("Near"), _ref("Far")]}}}
    near = {"type": "string", "pattern": "^(?!x)"}
    far = {"type": "string", "pattern": "^x"}
    kit = _kit(tmp_path, {"/x": _post("x", schema), **further}, Near=near, Far=far)
    for value in ("x", "y"):
        assert kit.get_tool("x").read_arguments({"a": value}) == {"a": value}
    if further:
        assert kit.get_tool("y").read_arguments({"body": "x"}) == {"body": "x"}


@pytest.mark.parametrize(("shared", "bad"), [(20, False), (20, True), (400, True)])
def test_definitions_of_many_tools_are_checked_in_few_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: int, bad: bool
) -> None:
    count = 0

    def counted(schema: object) -> UsableSchema:
        nonlocal count
        count += 1
        return usable_schema(schema)

    monkeypatch.setattr(fitting, "usable_schema", counted)
    schemas: dict[str, Any] = {
        f"S{number}": {
            "properties": {
                "next": _ref(f"S{(number + 1) % shared}"),
                **{key: {} for key in "abcdefg"},
            }
        }
        for number in range(shared)
    }
    if bad:
        schemas["S0"]["properties"]["a"] = STRANGE["look-around"]
    paths: dict[str, Any] = {}
    for number in range(300):
        schemas[f"Own{number}"] = {"properties": {"it": _ref("S0"), "n": {"type": "integer"}}}
        schema = {"type": "object", "properties": {"own": _ref(f"Own{number}")}}
        paths[f"/x{number}"] = _post(f"x{number}", schema)
    kit = _kit(tmp_path, paths, **schemas)
    assert count <= 300 + 6 + 50 + 10  # the own part of each tool, and the sets
    assert len(kit.tools) == 300
    with pytest.raises(InvalidArguments, match="/own/n"):
        kit.get_tool("x7").read_arguments({"own": {"n": "text"}})


def _described(count: int, chars: int, *tags: str) -> dict[str, Any]:
    """Return operations that take some text each."""
    text = {"description": "Some words. " * (chars // 12)}
    schema = {"type": "object", "properties": {f"p{number}": text for number in range(10)}}
    return {f"/x{number}": _post(f"x{number}", schema, *tags) for number in range(count)}


def _properties(kit: OpenApiToolkit, index: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = kit.tools[index].manifest().input_schema["properties"]
    return found


async def test_long_descriptions_are_cut_where_an_api_would_not_fit(tmp_path: Path) -> None:
    kit = _kit(tmp_path, _described(500, 3_000))
    assert kit.has_short_texts
    text = _properties(kit)["p0"]["description"]
    assert text.endswith("Some words.…")
    async with room_of("host") as (host,), host.host(kit):
        pass
    small = _kit(tmp_path, _described(10, 3_000))
    assert not small.has_short_texts
    assert len(_properties(small)["p0"]["description"]) == 3_000


async def test_an_api_that_fits_no_room_is_used_in_its_process_and_its_error_names_the_choice(
    tmp_path: Path,
) -> None:
    shared = {"properties": {f"property_{number}": {"type": "string"} for number in range(300)}}
    schema = {"type": "object", "properties": {"a": _ref("Shared")}}
    paths = {
        f"/x{number}": _post(f"x{number}", schema, "even" if number % 2 == 0 else "odd")
        for number in range(299)
    }
    async with web_server(echo) as server, room_of("host") as (host,):
        kit = _kit(tmp_path, GOOD | paths, server.url, Shared=shared)
        with pytest.raises(ValueError, match="--operations, --tags") as refused:
            async with host.host(kit):
                pass
        result: Any = await kit.execute(ToolContext(), "good", {})
    assert result.value["target"] == "/good"
    assert f"and a room takes {MAX_MANIFEST_BYTES:,}" in str(refused.value)
    for tag in ("even 150 (", "odd 149 (", "fine 1 ("):
        assert tag in str(refused.value)


def test_an_api_of_too_many_operations_names_the_choice(tmp_path: Path) -> None:
    paths = {
        f"/x{number}": _post(f"x{number}", {}, f"tag {number % 30}") for number in range(1_001)
    }
    with pytest.raises(SpecError, match="at most 1,000") as refused:
        _kit(tmp_path, paths)
    assert "(--operations, --tags)" in str(refused.value)
    assert "tag 0 34, " in str(refused.value)
    assert str(refused.value).endswith("and 10 tags more")


def test_a_value_that_is_named_as_a_description_is_not_cut(tmp_path: Path) -> None:
    long = "word " * 500
    value = {"description": long}
    schema = {
        "type": "object",
        "properties": {"description": {"enum": [value], "description": long}},
    }
    paths = _described(500, 3_000) | {"/value": _post("value", schema)}
    written = _properties(_kit(tmp_path, paths), -1)["description"]
    assert written["enum"] == [value]
    assert len(written["description"]) < 1_000
