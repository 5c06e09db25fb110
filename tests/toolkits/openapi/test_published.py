"""Published descriptions against a mock made from each, and an application with a generated one.

The mock, `prism`, refuses requests that do not fit the description.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, File, Header, HTTPException, Query, UploadFile
from pydantic import BaseModel
from uvicorn import Config, Server

from support.patience import PATIENCE_S
from support.web.npm_packages import npm_packages
from support.web.sample_values import sample_arguments
from toolbus import FileChunk, InputStream, ToolContext, ToolFailed
from toolbus_toolkits.credentials.references import CredentialResolver
from toolbus_toolkits.openapi import ApiOptions, OpenApiToolkit


@asynccontextmanager
async def _mock(prism: Path, description: Path) -> AsyncIterator[str]:
    """Run the mock of a description; give its address."""
    process = await asyncio.create_subprocess_exec(
        *("node", str(prism), "mock", "--host", "127.0.0.1", "--port", "0"),
        str(description),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        line = b""
        async with asyncio.timeout(PATIENCE_S):
            while b"listening on " not in line:
                line = await process.stdout.readline()
                assert line, "the mock ended before it listened"
        yield line.decode().partition("listening on ")[2].split()[0].strip("\x1b[0m")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


def _credentials(document: dict[str, Any]) -> dict[str, str]:
    schemes = document.get("securityDefinitions") or document.get("components", {}).get(
        "securitySchemes", {}
    )
    return dict.fromkeys(schemes, "user:password")


def _answers_only_with_errors(document: dict[str, Any], path: str, method: str) -> bool:
    responses = document["paths"][path][method]["responses"]
    return not any(status[0] in "23d" for status in responses)


@pytest.mark.parametrize(
    ("file", "tools"),
    [
        ("@readme/oas-examples/2.0/json/petstore-expanded.json", 4),
        ("@readme/oas-examples/3.0/json/petstore.json", 20),
        ("@readme/oas-examples/3.0/json/star-trek.json", 120),
        ("@readme/oas-examples/3.1/json/train-travel.json", 7),
        ("@scalar/galaxy/dist/3.1.json", 9),
    ],
)
async def test_every_operation_of_a_published_description_is_accepted_by_its_mock(
    file: str, tools: int
) -> None:
    modules = npm_packages(
        "openapi with published descriptions",
        "@stoplight/prism-cli@5.14.2",
        "@readme/oas-examples@8.2.2",
        "@scalar/galaxy@0.2.20",
    )
    document = json.loads((modules / file).read_text())
    failed: list[str] = []
    async with _mock(modules / "@stoplight/prism-cli/dist/index.js", modules / file) as address:
        options = ApiOptions(
            name="published",
            server=address,
            allow_private=True,
            credentials=_credentials(document),
            resolver=CredentialResolver(None),
        )
        kit = OpenApiToolkit.from_file(modules / file, options=options)
        for tool in kit.tools:
            manifest = tool.manifest()
            sent = FileChunk(b"x", "x.txt")
            upload: InputStream[Any] | None = InputStream([sent]) if manifest.takes else None
            arguments = sample_arguments(manifest.input_schema)
            try:
                await kit.execute(ToolContext(), tool.name, arguments, upload)
            except ToolFailed as error:
                failed.append(error.message.partition(" answered")[0])
    expected = [
        f"{method.upper()} {path}"
        for path, item in document["paths"].items()
        for method in item
        if method in ("get", "put", "post", "delete", "patch")
        and _answers_only_with_errors(document, path, method)
    ]
    assert (len(kit.tools), kit.skipped) == (tools, ())
    assert sorted(failed) == sorted(expected)


class Pet(BaseModel):
    name: str
    age: int | None = None
    friends: list[Pet] = []


def _application() -> FastAPI:
    app = FastAPI(title="Pets")
    pets: dict[int, Pet] = {}

    @app.post("/pets/{number}", operation_id="add")
    def add(number: int, pet: Pet, x_owner: Annotated[str, Header()]) -> dict[str, Any]:
        pets[number] = pet
        return {"number": number, "owner": x_owner, "pet": pet}

    @app.get("/pets", operation_id="find")
    def find(name: Annotated[list[str], Query()]) -> list[Pet]:
        return [pet for pet in pets.values() if pet.name in name]

    @app.delete("/pets/{number}", operation_id="remove", status_code=204)
    def remove(number: int) -> None:
        if pets.pop(number, None) is None:
            raise HTTPException(404, "no such pet")

    @app.post("/picture", operation_id="picture")
    def picture(file: Annotated[UploadFile, File()]) -> dict[str, Any]:
        return {"name": file.filename, "bytes": len(file.file.read())}

    return app


@asynccontextmanager
async def _served(app: FastAPI) -> AsyncIterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = Server(Config(app, log_level="error"))
        running = asyncio.create_task(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


async def test_an_application_is_used_through_the_description_that_it_generates() -> None:
    options = ApiOptions(allow_private=True)
    async with _served(_application()) as address:
        kit = await asyncio.to_thread(
            OpenApiToolkit.from_url, f"{address}/openapi.json", options=options
        )

        async def call(tool: str, /, *files: FileChunk, **arguments: Any) -> Any:
            upload: InputStream[Any] | None = InputStream(files) if files else None
            return (await kit.execute(ToolContext(), tool, arguments, upload)).value

        friend = {"name": "Ida", "age": None}
        added = await call("add", number=1, name="Rex", friends=[friend], **{"x-owner": "me"})
        found = await call("find", name=["Ida", "Rex"])
        picture = await call("picture", FileChunk(b"12345", "rex.png", "image/png"))
        assert await call("remove", number=1) is None
        with pytest.raises(ToolFailed, match="404") as missing:
            await call("remove", number=1)
    rex: dict[str, Any] = {"name": "Rex", "age": None, "friends": [{**friend, "friends": []}]}
    assert added == {"number": 1, "owner": "me", "pet": rex}
    assert (found, picture) == ([rex], {"name": "rex.png", "bytes": 5})
    assert json.loads(missing.value.details["body"]) == {"detail": "no such pet"}
