"""The factory `openapi`: its config, as an operator and as a request to a builder give it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from support.patience import PATIENCE_S
from support.processes.command_line import heard_interrupts
from support.web.scripted_server import Answer, web_server
from toolbus import ToolContext, builder_of
from toolbus.factories.factory import read_factory
from toolbus_toolkits.credentials import CredentialName, CredentialStore
from toolbus_toolkits.credentials.encrypted_file import create_key_file
from toolbus_toolkits.openapi import OpenApiConfig, openapi


def _spec(tmp_path: Path, url: str = "https://example.org") -> str:
    scheme = {"type": "apiKey", "in": "header", "name": "X-Key"}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "1st API!", "version": "1"},
        "servers": [{"url": url}],
        "paths": {
            "/a": {"get": {"operationId": "a", "security": [{"main": []}]}},
            "/b": {"get": {}},
        },
        "components": {"securitySchemes": {"main": scheme}},
    }
    file = tmp_path / "api.json"
    file.write_text(json.dumps(document))
    return str(file)


async def test_an_operator_may_set_everything_and_a_request_only_the_choice(
    tmp_path: Path,
) -> None:
    factory = read_factory(openapi)
    assert factory is not None
    free = [each.name for each in factory.fields if not each.is_operator_only]
    assert free == ["operations", "tags", "methods"]
    builder = builder_of(openapi, spec=_spec(tmp_path))
    with pytest.raises(ValidationError, match="server"):
        builder.type(server="http://169.254.169.254")


def test_a_toolkit_is_named_after_its_title_or_by_the_operator(tmp_path: Path) -> None:
    spec = _spec(tmp_path)
    assert openapi(OpenApiConfig(spec=spec)).name == "openapi"  # a name begins with a letter
    assert openapi(OpenApiConfig(spec=spec, name="mine", operations=["a"])).name == "mine"


def test_what_is_left_out_of_a_description_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = _spec(tmp_path)
    document = json.loads(Path(spec).read_text())
    document["paths"]["/b"]["get"]["requestBody"] = {"$ref": "#/nowhere"}
    Path(spec).write_text(json.dumps(document))
    openapi(OpenApiConfig(spec=spec))
    assert "GET /b is left out: $ref" in caplog.text


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"credentials": {"main": "plain secret"}}, "is not a reference: store it with"),
        ({"allow_hosts": ["https://x"]}, "write a host such as"),
        ({"pages": {"a": {"parameter": "p"}}}, "`parameter` needs `cursor`"),
        ({"pages": {"a": {"cursor": "next"}}}, "`cursor` is a JSON pointer"),
        ({"timeout_s": 0}, "greater than 0"),
        ({"read_only_methods": ["get", "POST"]}, "read_only_methods has 'POST': there are GET, "),
    ],
)
def test_an_invalid_config_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        OpenApiConfig(spec="api.json", **config)


def test_ctrl_c_ends_the_wait_for_a_description() -> None:
    program = """
import sys
from toolbus_toolkits.openapi import ApiOptions, OpenApiToolkit, documents
documents._TIMEOUT_S = 3_600
OpenApiToolkit.from_url(sys.argv[1], options=ApiOptions(allow_private=True))
"""
    with socket.create_server(("127.0.0.1", 0)) as silent, heard_interrupts():
        silent.settimeout(PATIENCE_S)
        spec = f"http://127.0.0.1:{silent.getsockname()[1]}/api.json"
        command = [sys.executable, "-c", program, spec]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                connection, _ = silent.accept()
                with connection:
                    assert connection.recv(1)
                    process.send_signal(signal.SIGINT)
                    assert process.wait(PATIENCE_S) == -signal.SIGINT
            finally:
                process.kill()


async def test_references_are_resolved_by_the_credential_store_at_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_key_file(tmp_path / "key")
    monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path))
    monkeypatch.setenv("TOOLBUS_CREDENTIALS_KEY_FILE", str(tmp_path / "key"))
    name = CredentialName.parse("o/t/k")
    CredentialStore.open().set(name, "value", hosts=["127.0.0.1"])
    async with web_server(lambda _: Answer()) as server:
        config = OpenApiConfig(
            spec=_spec(tmp_path, server.url),
            allow_private=True,
            credentials={"main": "${cred:o/t/k}"},
        )
        await openapi(config).execute(ToolContext(), "a", {})
    assert server.seen[0].headers["x-key"] == "value"
