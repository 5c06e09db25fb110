"""What descriptions of all versions become, and which are refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.web.scripted_server import Answer, web_server
from toolbus import InvalidArguments
from toolbus_toolkits.openapi import ApiOptions, OpenApiToolkit, SpecError, documents

SERVERS = [{"url": "https://{region}.example.org/v1", "variables": {"region": {"default": "eu"}}}]


def _file(tmp_path: Path, document: Any, name: str = "api.json") -> Path:
    file = tmp_path / name
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def _document(paths: dict[str, Any], version: str = "3.0.3", **more: Any) -> dict[str, Any]:
    info = {"title": "Some Things", "version": "2"}
    return {"openapi": version, "info": info, "servers": SERVERS, "paths": paths, **more}


def _posted(schema: Any, version: str = "3.0.3", **more: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    operation = {"operationId": "op", "requestBody": {"required": True, "content": content}}
    return _document({"/x": {"post": operation}}, version, **more)


def _schema(tmp_path: Path, document: dict[str, Any]) -> dict[str, Any]:
    kit = OpenApiToolkit.from_file(_file(tmp_path, document))
    assert kit.skipped == ()
    return kit.get_tool("op").manifest().input_schema


def test_the_three_versions_of_one_api_become_the_same_arguments(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
    limit = {"name": "limit", "in": "query"}
    shape = {"type": "integer", "exclusiveMinimum": True, "minimum": 0}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}

    def new(version: str, number: Any) -> dict[str, Any]:
        parameters = [{**limit, "schema": number}]
        operation = {"operationId": "op", "parameters": parameters, "requestBody": body}
        return _document({"/x": {"post": operation}}, version)

    swagger = {
        "swagger": "2.0",
        "info": {"title": "Some Things", "version": "2"},
        "host": "eu.example.org",
        "basePath": "/v1",
        "schemes": ["https"],
        "paths": {
            "/x": {
                "parameters": [{**limit, **shape}],
                "post": {
                    "operationId": "op",
                    "parameters": [
                        {"name": "it", "in": "body", "required": True, "schema": schema}
                    ],
                },
            }
        },
    }
    documents = [
        swagger,
        new("3.0.3", shape),
        new("3.1.0", {"type": "integer", "exclusiveMinimum": 0}),
    ]
    first, *others = (_schema(tmp_path, each) for each in documents)
    assert first == {
        "type": "object",
        "properties": {
            "limit": {"type": "integer", "exclusiveMinimum": 0},
            "name": {"type": "string"},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    assert others == [first, first]


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        (
            {"type": "string", "nullable": True, "enum": ["a"]},
            {"type": ["string", "null"], "enum": ["a", None]},
        ),
        (
            {"nullable": True, "oneOf": [{"type": "string"}]},
            {"anyOf": [{"oneOf": [{"type": "string"}]}, {"type": "null"}]},
        ),
        (
            {"$ref": "#/components/schemas/A", "nullable": True},
            {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]},
        ),
        (
            {"type": ["string", "integer"], "x-nullable": True},
            {"type": ["string", "integer", "null"]},
        ),
        (
            {"type": ["string", "null"], "enum": ["a"]},
            {"type": ["string", "null"], "enum": ["a", None]},
        ),
        ({"type": "int", "required": True, "x-y": 1, "xml": {}}, {}),
        ({"type": "string", "pattern": "(?=a)"}, {"type": "string"}),
        (
            {
                "type": "object",
                "properties": {"id": {"readOnly": True}, "a": {"writeOnly": True}},
                "required": ["id", "a"],
                "additionalProperties": True,
            },
            {
                "type": "object",
                "properties": {"a": {}},
                "required": ["a"],
                "additionalProperties": True,
            },
        ),
    ],
)
def test_a_schema_becomes_json_schema(
    tmp_path: Path, schema: dict[str, Any], written: dict[str, Any]
) -> None:
    document = _posted({"type": "array", "items": schema}, components={"schemas": {"A": {}}})
    for version in ("3.0.3", "3.1.0"):  # some write of each what the other has
        document["openapi"] = version
        assert _schema(tmp_path, document)["properties"]["body"]["items"] == written


def test_recursive_schemas_become_definitions(tmp_path: Path) -> None:
    tree = {
        "properties": {"children": {"type": "array", "items": {"$ref": "#/components/schemas/T"}}}
    }
    written = _schema(
        tmp_path, _posted({"$ref": "#/components/schemas/T"}, components={"schemas": {"T": tree}})
    )
    assert written["properties"]["children"]["items"] == {"$ref": "#/$defs/T"}
    assert written["$defs"] == {
        "T": {"properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/T"}}}}
    }


def test_definitions_are_shared_by_tools_and_checked_for_each(tmp_path: Path) -> None:
    def ref(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"it": {"$ref": f"#/components/schemas/{name}"}}}

    good = {"properties": {"a": {"type": "integer"}, "again": {"$ref": "#/components/schemas/A"}}}
    bad = {"properties": {"b": {"pattern": "(?=b)"}, "again": {"$ref": "#/components/schemas/B"}}}
    document = _posted(ref("A"), components={"schemas": {"A": good, "B": bad}})
    for name in ("A", "B"):
        body = {"required": True, "content": {"application/json": {"schema": ref(name)}}}
        document["paths"][f"/{name}"] = {"post": {"operationId": name, "requestBody": body}}
    kit = OpenApiToolkit.from_file(_file(tmp_path, document))
    schemas = [kit.get_tool(name).manifest().input_schema for name in ("op", "A", "B")]
    assert schemas[0]["$defs"] is schemas[1]["$defs"]
    assert schemas[2]["$defs"]["B"]["properties"]["b"] == {}
    with pytest.raises(InvalidArguments) as refused:
        kit.get_tool("A").read_arguments({"it": {"again": {"a": "x"}}})
    assert refused.value.details["path"] == "/it/again/a"
    assert kit.get_tool("A").read_arguments({"it": {"a": 1}}) == {"it": {"a": 1}}


def test_equal_names_in_several_places_get_the_place_as_a_suffix(tmp_path: Path) -> None:
    parameters = [
        {"name": "id", "in": where, "required": True, "schema": {"title": where}}
        for where in ("cookie", "header", "query", "path")
    ]
    document = _posted(
        {"type": "object", "properties": {"id": {"title": "body"}, "attachment": {}}}
    )
    document["paths"] = {"/x/{id}": {"parameters": parameters, **document["paths"]["/x"]}}
    properties = _schema(tmp_path, document)["properties"]
    titles = {name: each.get("title") for name, each in properties.items()}
    assert titles == {
        "id": "path",
        "id_query": "query",
        "id_header": "header",
        "id_cookie": "cookie",
        "id_body": "body",
        "attachment_body": None,
    }


@pytest.mark.parametrize(
    ("wire_names", "fields", "arguments"),
    [
        (["$filter", "filter"], [], ["filter_query", "filter"]),
        (["_id", "id"], [], ["id_query", "id"]),
        (["a[b]", "a_b"], [], ["a_b_query", "a_b"]),
        (["$filter", "@filter", "filter"], [], ["filter_query", "filter_query_2", "filter"]),
        (["$filter", "filter", "filter_query"], [], ["filter_query_2", "filter", "filter_query"]),
        (["$filter"], ["filter"], ["filter_query", "filter"]),
        (["filter"], ["_filter"], ["filter", "filter_body"]),
        (["$filter"], [], ["filter"]),
        (["x" * 64 + "y"], ["x" * 64], ["x" * 58 + "_query", "x" * 64]),
    ],
)
def test_an_argument_with_the_exact_name_of_a_parameter_or_field_is_that_one(
    tmp_path: Path, wire_names: list[str], fields: list[str], arguments: list[str]
) -> None:
    document = _posted({"type": "object", "properties": {name: {"title": name} for name in fields}})
    document["paths"]["/x"]["parameters"] = [
        {"name": name, "in": "query", "schema": {"title": name}} for name in wire_names
    ]
    properties = _schema(tmp_path, document)["properties"]
    titles = {name: schema["title"] for name, schema in properties.items()}
    assert titles == dict(zip(arguments, [*wire_names, *fields], strict=True))


_FORM = {"schema": {"type": "object", "properties": {"a": {"type": [["x"], "string"]}}}}


@pytest.mark.parametrize(
    "operation",
    [
        {"tags": 5},
        {"tags": True, "parameters": [{"name": "p", "in": "query", "schema": {"type": [{}, []]}}]},
        {"requestBody": {"content": {"multipart/form-data": {**_FORM, "encoding": {"a": 5}}}}},
        {"requestBody": {"content": {"multipart/form-data": {**_FORM, "encoding": True}}}},
    ],
    ids=str,
)
def test_members_of_the_wrong_type_hurt_no_other_operation(
    tmp_path: Path, operation: dict[str, Any]
) -> None:
    paths = {
        "/a": {"get": {"operationId": "good"}},
        "/b": {"post": {"operationId": "b", **operation}},
    }
    kit = OpenApiToolkit.from_file(_file(tmp_path, _document(paths)))
    assert "good" in {each.name for each in kit.tools}


def test_names_of_tools_fit_do_not_collide_and_do_not_depend_on_order(tmp_path: Path) -> None:
    paths = {
        "/a": {"get": {"operationId": "same name"}, "put": {"operationId": "same/name"}},
        "/b/{id}": {"get": {"parameters": [{"name": "id", "in": "path"}]}},
        "/c": {"get": {"operationId": "n" * 300}},
    }
    backward = dict(reversed(paths.items()))
    names = [
        sorted(each.name for each in OpenApiToolkit.from_file(_file(tmp_path, document)).tools)
        for document in (_document(paths), _document(backward))
    ]
    assert names[0] == names[1]
    plain = [each.rpartition("_")[0] if each != "get_b_id" else each for each in names[0]]
    assert plain == ["get_b_id", "n" * 55, "same_name", "same_name"]
    one = OpenApiToolkit.from_file(_file(tmp_path, _document(paths)), methods=["put"])
    assert one.tools[0].name in names[0]


@pytest.mark.parametrize("trusted", [(), ("get",), ("GET", "HEAD")])
def test_flags_follow_the_method_and_read_only_the_operator(
    tmp_path: Path, trusted: tuple[str, ...]
) -> None:
    methods = ("get", "head", "put", "delete", "post", "patch")
    operations = {each: {"operationId": each} for each in methods}
    override = {"name": "X-HTTP-Method-Override", "in": "header", "schema": {"type": "string"}}
    paths = {"/x": operations, "/y": {"get": {"operationId": "any", "parameters": [override]}}}
    kit = OpenApiToolkit.from_file(
        _file(tmp_path, _document(paths)), options=ApiOptions(read_only_methods=trusted)
    )
    flags = {
        tool.name: (tool.is_concurrency_safe, tool.idempotent, tool.destructive, tool.open_world)
        for tool in kit.manifest().tools
    }
    assert flags == {
        "get": (True, True, False, True),
        "head": (True, True, False, True),
        "put": (False, True, False, True),
        "delete": (False, True, True, True),
        "post": (False, False, False, True),
        "patch": (False, False, False, True),
        "any": (True, True, False, True),
    }
    assert {tool.name for tool in kit.tools if tool.read_only} == {each.lower() for each in trusted}


def test_operations_are_chosen_by_id_tag_and_method(tmp_path: Path) -> None:
    paths = {
        "/a": {"get": {"operationId": "a.b", "tags": ["x"]}, "post": {"tags": ["x", "y"]}},
        "/b": {"get": {"operationId": "c"}},
    }
    file = _file(tmp_path, _document(paths))

    def chosen(**choice: Any) -> list[str]:
        return [each.name for each in OpenApiToolkit.from_file(file, **choice).tools]

    assert chosen(operations=["a.b", "post_a"]) == ["a_b", "post_a"]
    assert chosen(tags=["x"], methods=["GET"]) == ["a_b"]
    with pytest.raises(ValueError, match="no operation 'a-b'; did you mean"):
        chosen(operations=["a-b"])
    with pytest.raises(ValueError, match="no operation of the description is chosen"):
        chosen(methods=["PUT"])
    with pytest.raises(ValueError, match="no operation has the tag 'z': there are x, y"):
        chosen(tags=["x", "z"])


def test_an_unusable_operation_is_left_out_unless_it_was_named(tmp_path: Path) -> None:
    broken = {"operationId": "broken", "requestBody": {"$ref": "#/nowhere"}}
    paths = {"/a": {"get": {"operationId": "good"}}, "/b": {"post": broken}}
    kit = OpenApiToolkit.from_file(_file(tmp_path, _document(paths)))
    assert [each.name for each in kit.tools] == ["good"]
    assert kit.skipped == ("POST /b: $ref '#/nowhere' cannot be read: there is no such part",)
    nested = {"properties": {"a": {"$ref": "#/nowhere"}}}
    broken["requestBody"] = {"content": {"application/json": {"schema": nested}}}
    _file(tmp_path, _document(paths))
    with pytest.raises(ValueError, match=r"POST /b: .* cannot be read"):
        OpenApiToolkit.from_file(tmp_path / "api.json", operations=["good", "broken"])


def test_an_operation_whose_address_cannot_be_filled_is_left_out(tmp_path: Path) -> None:
    def server(**variable: Any) -> dict[str, Any]:
        url = "https://{region}.example.org"
        return {"get": {"servers": [{"url": url, "variables": {"region": variable}}]}}

    paths = {"/x": server(enum=["eu", "us"]), "/y": server(), "/z/{id}": {"get": {}}}
    kit = OpenApiToolkit.from_file(_file(tmp_path, _document(paths)))
    assert [tool.title for tool in kit.tools] == ["GET /x"]
    assert kit.skipped == (
        "GET /y: the server has the variable {region} without a value: name one with server "
        "(--server URL)",
        "GET /z/{id}: the path has {id}, which is none of its parameters",
    )


_BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join(['*' + old] * 10)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not an object"),
        ("[1]", "not an object"),
        ("{", "neither JSON nor YAML at line"),
        ("a: !!python/object/apply:os.system [x]", "neither JSON nor YAML"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "deeper than 100 levels"),
        ("[" * 100_000, "neither JSON nor YAML"),
        ("[" * 101 + "]" * 101, "deeper than 100 levels"),
        ("a: &a [*a]", "deeper than 100 levels"),
        (_BOMB, "more than 4,000,000 values"),
        ("a: " + ":".join("1" * 2_000_000), "neither `openapi` nor `swagger`"),
        ('{"a": ' + "1" * 5_000 + "}", "a value that cannot be read"),
        ("openapi: 4.0.0", "openapi '4.0.0' is not supported"),
        ("swagger: 1.2", "swagger '1.2' is not supported"),
        ("info: {}", "neither `openapi` nor `swagger`"),
    ],
    ids=lambda each: ascii(each)[:20],
)
def test_a_hostile_or_foreign_document_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        OpenApiToolkit.from_file(_file(tmp_path, text))


def test_yaml_keeps_words_and_dates_as_text_and_status_codes_as_keys(tmp_path: Path) -> None:
    text = """
        openapi: 3.0.3
        info: {title: True dates, version: 2024-01-01}
        servers: [{url: "https://example.org"}]
        paths:
          /x:
            get:
              operationId: op
              parameters:
              - name: on
                in: query
                schema: {enum: [yes, no, 2024-01-01, true, 1:30, -1.5e3]}
              responses: {200: {description: ok}}
    """
    kit = OpenApiToolkit.from_file(_file(tmp_path, text, "api.yaml"))
    on = kit.get_tool("op").manifest().input_schema["properties"]["on"]
    assert (kit.version, on["enum"]) == (
        "2024-01-01",
        ["yes", "no", "2024-01-01", True, "1:30", -1500],
    )


def test_more_operations_than_a_toolkit_has_must_be_chosen_from(tmp_path: Path) -> None:
    paths = {f"/x{number}": {"get": {"operationId": f"op{number}"}} for number in range(10_000)}
    file = _file(tmp_path, _document(paths))
    with pytest.raises(SpecError, match=r"10,000 operations are chosen, at most 1,000"):
        OpenApiToolkit.from_file(file)
    assert len(OpenApiToolkit.from_file(file, operations=["op7", "op9999"]).tools) == 2


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ("file:///etc/passwd", "only below the folder"),
        ("../outside.json#/A", "only below the folder"),
        ("linked.json#/A", "only below the folder"),
        ("http://169.254.169.254/latest", "only from hosts in allow_hosts"),
        ("#/components/schemas/A", "refers to itself"),
        ("#no-anchor", "there is no such part"),
        ("missing.json", "cannot be read"),
    ],
)
def test_a_reference_that_may_not_be_read_leaves_its_operation_out(
    tmp_path: Path, ref: str, words: str
) -> None:
    folder = tmp_path / "specs"
    folder.mkdir()
    _file(tmp_path, {"A": {}}, "outside.json")
    (folder / "linked.json").symlink_to(tmp_path / "outside.json")
    document = _posted({"$ref": ref}, components={"schemas": {"A": {"$ref": ref}}})
    with pytest.raises(SpecError, match=words):
        OpenApiToolkit.from_file(_file(folder, document))


def test_slow_documents_have_a_limit_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_TOTAL_S", -1.0)
    _file(tmp_path, {"A": {"type": "integer"}}, "a.json")
    with pytest.raises(SpecError, match="took more than"):
        OpenApiToolkit.from_file(_file(tmp_path, _posted({"$ref": "a.json#/A"})))


def test_references_to_files_below_the_folder_are_relative_to_each_file(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    _file(tmp_path, {"A": {"properties": {"b": {"$ref": "b.json#/B"}}}}, "parts/a.json")
    _file(tmp_path, "B: {type: integer}", "parts/b.json")
    written = _schema(tmp_path, _posted({"$ref": "parts/a.json#/A"}))
    assert written["properties"] == {"b": {"$ref": "#/$defs/B"}}
    assert written["$defs"] == {"B": {"type": "integer"}}


def test_references_in_a_file_of_paths_are_relative_to_that_file(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    _file(tmp_path, {"/x": {"$ref": "items.json#/x"}}, "parts/paths.json")
    _file(tmp_path, {"x": {"get": {"operationId": "op"}}}, "parts/items.json")
    document = {**_document({}), "paths": {"$ref": "parts/paths.json"}}
    kit = OpenApiToolkit.from_file(_file(tmp_path, document))
    assert [tool.name for tool in kit.tools] == ["op"]
    assert not kit.skipped


async def test_a_description_from_an_address_reads_its_own_host_and_no_files(
    tmp_path: Path,
) -> None:
    secret = _file(tmp_path, {"A": {}}, "secret.json")
    main = _document(
        {
            "/here": {"post": {"operationId": "here", "requestBody": {"$ref": "parts.json#/A"}}},
            "/file": {"$ref": f"{secret.as_uri()}#/A"},
            "/meta": {"$ref": "http://169.254.169.254/latest"},
        }
    )
    main["servers"] = [{"url": "../api"}]
    answers = {
        "/specs/main.json": main,
        "/specs/parts.json": {"A": {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    }
    options = ApiOptions(allow_private=True)
    async with web_server(
        lambda seen: Answer(body=json.dumps(answers[seen.target]).encode())
    ) as server:
        url = f"{server.url}/specs/main.json"
        kit = await asyncio.to_thread(lambda: OpenApiToolkit.from_url(url, options=options))
        with pytest.raises(SpecError, match="is private"):
            await asyncio.to_thread(lambda: OpenApiToolkit.from_url(url))
    assert [each.name for each in kit.tools] == ["here"]
    assert len(kit.skipped) == 2
    assert "must begin with http" in kit.skipped[0]
    assert "not allowed" in kit.skipped[1]


def test_a_relative_server_of_a_file_must_be_named(tmp_path: Path) -> None:
    document = _document({"/x": {"get": {"operationId": "op"}}})
    document["servers"] = [{"url": "/v1"}]
    file = _file(tmp_path, document)
    with pytest.raises(SpecError, match="name one with server"):
        OpenApiToolkit.from_file(file)
    OpenApiToolkit.from_file(file, options=ApiOptions(server="https://example.org/v1"))
