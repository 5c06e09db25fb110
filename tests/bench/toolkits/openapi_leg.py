"""The toolkit of an API with 1,000 operations, made from a file again and again.

The file is JSON or YAML with a plain schema for each body, or JSON whose bodies each reach 50
schemas that refer to one another.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import yaml

from bench.role import Facts, Order, keep_calling, run_role, serve_orders
from toolbus_toolkits.openapi import OpenApiToolkit

OPERATIONS, SCHEMAS = 1_000, 50


async def caller(_facts: Facts) -> None:
    """Make the toolkit of the file that an order names."""
    with tempfile.TemporaryDirectory() as folder:
        orders = {path.name: _measured(path) for path in _files(Path(folder))}

        async def make(file: str, seconds: float, in_flight: int) -> Facts:
            return await orders[file](seconds=seconds, in_flight=in_flight)

        await serve_orders({"call": make}, ready=True)


def _files(folder: Path) -> list[Path]:
    plain, recursive = (_document(is_recursive=each) for each in (False, True))
    texts = {
        "plain.json": json.dumps(plain),
        "plain.yaml": yaml.dump(plain, Dumper=yaml.CSafeDumper),
        "recursive.json": json.dumps(recursive),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _measured(path: Path) -> Order:
    async def make(*_: int) -> dict[str, Any]:
        toolkit = OpenApiToolkit.from_file(path)
        await asyncio.sleep(0)
        if len(toolkit.tools) != OPERATIONS:
            raise AssertionError(f"the toolkit has {len(toolkit.tools)} tools, not {OPERATIONS}")
        return {}

    async def order(seconds: float, in_flight: int) -> Facts:
        return await keep_calling(make, seconds, in_flight)

    return order


def _document(*, is_recursive: bool) -> dict[str, Any]:
    schemas = {f"S{number}": _schema(number, is_recursive) for number in range(SCHEMAS)}
    numbers = range(OPERATIONS)
    paths = {f"/things/{number}/{{id}}": {"post": _operation(number)} for number in numbers}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Things", "version": "1"},
        "servers": [{"url": "https://api.example.org"}],
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(number: int) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/S{number % SCHEMAS}"}
    return {
        "operationId": f"change_{number}",
        "summary": f"Change thing {number}.",
        "parameters": [
            {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
            {"name": "limit", "in": "query", "schema": {"type": "integer", "maximum": 100}},
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
    }


def _schema(number: int, is_recursive: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "name": {"type": "string", "minLength": 1, "description": "Its name."},
        "count": {"type": "integer", "minimum": 0},
        "kind": {"type": "string", "enum": ["small", "large"]},
    }
    if is_recursive:
        following = {"$ref": f"#/components/schemas/S{(number + 1) % SCHEMAS}"}
        properties["next"] = following
        properties["others"] = {"type": "array", "items": following}
        properties["parent"] = {"$ref": f"#/components/schemas/S{number}"}
    return {"type": "object", "properties": properties, "required": ["name"]}


if __name__ == "__main__":
    run_role({"caller": caller})
