"""Opening a model: names, addresses, keys and options. Nothing is sent."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from typing import Any

import pytest

from toolbus.errors import ToolFailed
from toolbus.models import anthropic, gemini, open_model, openai_chat, openai_responses, registry
from toolbus_toolkits.credentials import CredentialName, CredentialStore
from toolbus_toolkits.credentials.encrypted_file import create_key_file
from toolbus_toolkits.credentials.store import KEY_FILE_VARIABLE

KEY = "sk-0123456789abcdef"
VARIABLES = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")
ADDRESSES = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """No key and no address but those of the test."""
    for name in (*VARIABLES, *ADDRESSES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")


def key_of(model: Any) -> str:
    key: str = model._make_client.args[2].get_secret_value()
    return key


@pytest.mark.parametrize(
    ("name", "address", "adapter"),
    [
        ("openai:gpt", None, openai_responses),
        ("openai:gpt", "http://localhost:8000/v1", openai_chat),
        ("openai-chat:gpt", None, openai_chat),
        ("openai-responses:gpt", "http://localhost:8000/v1", openai_responses),
        ("anthropic:claude", None, anthropic),
        ("gemini:gemini", None, gemini),
        ("openai:org/name:tag", None, openai_responses),
    ],
)
def test_a_name_tells_the_api(name: str, address: str | None, adapter: Any) -> None:
    model: Any = open_model(name, address, api_key=KEY)
    assert model.adapter is adapter
    assert model._make_client.args[0] == name.partition(":")[2]
    assert KEY not in repr(model) + repr(vars(model)) + repr(model._redact.__dict__.keys())


def test_an_address_in_the_variable_counts_as_one_that_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    model: Any = open_model("openai:llama")
    assert (model.adapter, key_of(model)) == (openai_chat, "no-key")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"name": "gpt"}, ValueError, "write openai:NAME, openai-chat:NAME"),
        ({"name": "openai:"}, ValueError, "is not the name of a model"),
        ({"name": "openai: "}, ValueError, "is not the name of a model"),
        ({"name": "Openai:gpt"}, ValueError, "is not the name of a model"),
        ({"name": ""}, ValueError, "is not the name of a model"),
        ({"timeout_s": 0}, ValueError, "timeout_s"),
        ({"timeout_s": float("nan")}, ValueError, "timeout_s"),
        ({"timeout_s": float("inf")}, ValueError, "timeout_s"),
        ({"max_retries": -1}, ValueError, "max_retries"),
        ({"base_url": ""}, ValueError, "base_url must be"),
        ({"base_url": "localhost:8000"}, ValueError, "base_url must be"),
        ({"base_url": "ftp://localhost"}, ValueError, "base_url must be"),
        ({"base_url": "http://localhost:99999999"}, ValueError, "base_url must be"),
        ({"base_url": f"http://user:{KEY}@localhost"}, ValueError, "without user"),
        ({"base_url": f"http://localhost/v1?key={KEY}"}, ValueError, "without user"),
        ({"options": {"temprature": 1}}, TypeError, "'temprature' is no option of openai"),
        ({"options": {"model": "other"}}, TypeError, "'model' is no option"),
        ({"options": {"tools": []}}, TypeError, "'tools' is no option"),
        ({"name": "gemini:g", "options": {"http_options": {}}}, TypeError, "'http_options'"),
        ({"api_key": ""}, ValueError, "api_key is no key: it is empty"),
        ({"api_key": f"{KEY}\n"}, ValueError, "has a space, a line end"),
        ({"api_key": f"{KEY}\u00e9"}, ValueError, "beyond ASCII"),
        ({"name": "scripted:f", "options": {"a": 1}}, ValueError, "takes no base_url"),
    ],
)
def test_a_mistake_is_told(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        open_model(**{"name": "openai:gpt", "api_key": KEY} | arguments)
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    own = [each.locals for each in shown.stack if "/toolbus/" in each.filename]
    assert words in str(caught.value)
    assert KEY not in str(caught.value)
    if "base_url" not in arguments:  # which has no place for a key
        assert own
        assert KEY not in str(own)


@pytest.mark.parametrize(
    ("provider", "module"),
    [("openai", "openai"), ("anthropic", "anthropic"), ("gemini", "google.genai")],
)
def test_a_client_that_is_not_installed_is_told_with_its_extra(
    provider: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, _, name = module.rpartition(".")
    if parent:  # a namespace, which other packages bring too
        monkeypatch.delattr(import_module(parent), name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"toolbus.models.{provider}_client", raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'toolbus\[{provider}\]'"):
        open_model(f"{provider}:some", api_key=KEY)


@pytest.mark.parametrize("prefix", ["openai", "anthropic", "gemini"])
def test_without_a_key_the_three_ways_are_told(prefix: str) -> None:
    with pytest.raises(ValueError, match=r"set [A-Z_ or]+, store one with") as caught:
        open_model(f"{prefix}:name")
    assert f"toolbus credential set models/{prefix}/key --host " in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"GEMINI_API_KEY": KEY}, KEY),
        ({"GOOGLE_API_KEY": KEY}, KEY),
        ({"GEMINI_API_KEY": KEY, "GOOGLE_API_KEY": "another"}, KEY),
        ({"GEMINI_API_KEY": "", "GOOGLE_API_KEY": KEY}, KEY),
    ],
)
def test_a_key_comes_from_the_variables_of_the_provider(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert key_of(open_model("gemini:name")) == expected
    assert key_of(open_model("gemini:name", api_key="given")) == "given"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (None, KEY),
        ("https://api.openai.com/v1", KEY),
        ("http://api.openai.com/v1", "no-key"),
        ("http://127.example/v1", "no-key"),
        ("https://other.example/v1", "no-key"),
        ("https://api.openai.com.example/v1", "no-key"),
    ],
)
def test_a_stored_key_is_sent_to_its_hosts_only(
    address: str | None, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    create_key_file(tmp_path / "key")
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "key"))
    name = CredentialName.parse("models/openai/key")
    CredentialStore.open().set(name, KEY, hosts=["api.openai.com", "127.example"])
    assert key_of(open_model("openai:gpt", address)) == expected


def test_a_store_tells_why_it_gives_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(provider: str, host: str) -> str:
        raise ToolFailed(f"the key of {provider} may not go to {host}")

    class Entry:
        load = staticmethod(lambda: refuse)

    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry])
    with pytest.raises(ValueError, match=r"\(the key of openai may not go to api\.openai\.com\)"):
        open_model("openai:gpt")
