"""Credentials: stored encrypted, sent only where they may go, removed from texts."""

from __future__ import annotations

import logging
import stat
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from toolbus import InvalidArguments
from toolbus_toolkits.credentials import (
    CredentialName,
    CredentialNotFound,
    CredentialRefused,
    CredentialStore,
    StoreUnavailable,
)
from toolbus_toolkits.credentials.encrypted_file import create_key_file
from toolbus_toolkits.credentials.references import (
    CredentialResolver,
    RedactingFilter,
    has_reference,
    refuse_references,
)
from toolbus_toolkits.credentials.store import KeyringEntries

NAME = CredentialName("acme", "mail", "token")
SECRET = 'top/secret "value" 7'


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr("toolbus_toolkits.credentials.store.usable_keyring", lambda: None)
    create_key_file(tmp_path / "key")
    home, key = str(tmp_path / "home"), str(tmp_path / "key")
    return {"TOOLBUS_HOME": home, "TOOLBUS_CREDENTIALS_KEY_FILE": key}


@pytest.fixture
def store(environ: dict[str, str]) -> CredentialStore:
    return CredentialStore.open(environ)


class MemoryKeyring(dict[tuple[str, str], str]):
    def get_password(self, service: str, username: str) -> str | None:
        return self.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self[service, username]


@pytest.mark.parametrize("place", ["file", "keyring"])
def test_credential_is_stored_listed_and_deleted(environ: dict[str, str], place: str) -> None:
    home = Path(environ["TOOLBUS_HOME"])
    entries = KeyringEntries(home, MemoryKeyring()) if place == "keyring" else None
    store = CredentialStore(environ, entries)
    store.set(NAME, SECRET, hosts=["API.example.org"], commands=["npx"])
    assert (found := store.get(NAME)).value == SECRET
    assert SECRET not in f"{found!r}{found}{store.list()}"
    (info,) = store.list()
    assert (info.name, info.hosts, info.commands) == (NAME, ("api.example.org",), ("npx",))
    for path in home.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"secret" not in path.read_bytes()
    with pytest.raises(CredentialNotFound, match="did you mean acme/mail/token"):
        store.get(NAME._replace(key="tokn"))
    store.delete(NAME)
    assert store.list() == []


@pytest.mark.parametrize("text", ["", "a/b", "a/b/c/d", "a/b/c d", "a//c", f"a/b/{'c' * 65}"])
def test_bad_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="org/tool/key"):
        CredentialName.parse(text)


@pytest.mark.parametrize(
    ("value", "hosts", "text"),
    [
        ("abc", [], "4 characters"),
        ("x" * 65_537, [], "at most 65536"),
        (SECRET, ["https://a.org/x"], "without a scheme"),
        (SECRET, ["a.org:65536"], "without a scheme"),
        (SECRET, ["[1:2]"], "without a scheme"),
    ],
)
def test_bad_value_or_place_is_refused(
    store: CredentialStore, value: str, hosts: list[str], text: str
) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        store.set(NAME, value, hosts=hosts)
    assert value not in str(caught.value)


def test_wrong_key_and_damaged_file_are_errors_and_destroy_nothing(
    environ: dict[str, str], store: CredentialStore, tmp_path: Path
) -> None:
    store.set(NAME, SECRET)
    path = tmp_path / "home" / "credentials.enc"
    before = path.read_bytes()
    create_key_file(tmp_path / "other")
    other = CredentialStore.open({**environ, "TOOLBUS_CREDENTIALS_KEY_FILE": f"{tmp_path}/other"})
    with pytest.raises(StoreUnavailable, match="damaged"):
        other.set(NAME, "another value")
    assert path.read_bytes() == before
    path.write_bytes(before[:-9])
    with pytest.raises(StoreUnavailable, match="damaged"):
        store.set(NAME, "another value")
    assert path.read_bytes() == before[:-9]


@pytest.mark.parametrize("file", ["key", "home/credentials.enc"])
def test_file_that_others_can_read_is_refused(
    store: CredentialStore, tmp_path: Path, file: str
) -> None:
    store.set(NAME, SECRET)
    (tmp_path / file).chmod(0o640)
    with pytest.raises(StoreUnavailable, match="chmod 600"):
        store.get(NAME)


def test_storing_without_keyring_and_key_file_is_refused(environ: dict[str, str]) -> None:
    del environ["TOOLBUS_CREDENTIALS_KEY_FILE"]
    with pytest.raises(StoreUnavailable, match=r"keyring.*toolbus credential key PATH"):
        CredentialStore.open(environ).set(NAME, SECRET)


def test_writers_at_once_lose_nothing(environ: dict[str, str]) -> None:
    names = [NAME._replace(key=f"k{index}") for index in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: CredentialStore.open(environ).set(name, SECRET), names))
    assert {each.name for each in CredentialStore.open(environ).list()} == set(names)


@pytest.mark.parametrize(
    ("hosts", "host", "allowed"),
    [
        ([], "api.example.org", False),
        (["api.example.org"], "API.example.org:8443", True),
        (["api.example.org"], "api.example.org.evil.net", False),
        (["*.example.org"], "a.b.example.org", True),
        (["*.example.org"], "example.org", False),
        (["*.example.org"], "evilexample.org", False),
        (["localhost:80"], "localhost:81", False),
        (["localhost:80"], "localhost:80", True),
    ],
)
def test_credential_goes_only_to_its_hosts(
    store: CredentialStore, hosts: list[str], host: str, allowed: bool
) -> None:
    store.set(NAME, SECRET, hosts=hosts)
    resolver = CredentialResolver(store)
    if allowed:
        assert resolver.for_host("Bearer ${cred:acme/mail/token}", host) == f"Bearer {SECRET}"
        return
    with pytest.raises(CredentialRefused, match="--host") as caught:
        resolver.for_host("${cred:acme/mail/token}", host)
    assert (caught.value.executed, caught.value.code) == ("no", "tool_failed")


def test_reference_is_escaped_refused_and_bound_to_its_command(store: CredentialStore) -> None:
    store.set(NAME, SECRET, commands=["npx"])
    resolver = CredentialResolver(store)
    assert resolver.for_command("$${cred:x} ${cred:acme/mail/token}", "npx") == (
        "${cred:x} " + SECRET
    )
    with pytest.raises(CredentialRefused, match="--command"):
        resolver.for_command("${cred:acme/mail/token}", "node")
    for text in ("${cred:x}", "${cred:a/b/c", "${cred:}"):
        with pytest.raises(CredentialRefused, match="not a reference"):
            resolver.for_command(text, "npx")
    with pytest.raises(CredentialRefused, match="operator"):
        CredentialResolver(None).for_host("${cred:a/b/c}", "a.org")


def test_a_value_that_begins_with_another_one_is_removed_whole(store: CredentialStore) -> None:
    resolver = CredentialResolver(store)
    for key, value in (("short", "hunter"), ("long", "hunter2tail")):
        store.set(CredentialName("a", "b", key), value, commands=["npx"])
        resolver.for_command(f"${{cred:a/b/{key}}}", "npx")
    assert resolver.redact("hunter2tail") == "[credential a/b/long]"


def test_resolved_value_is_removed_from_texts_and_log_records(
    store: CredentialStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.set(NAME, SECRET, commands=["npx"])
    resolver = CredentialResolver(store)
    resolver.for_command("${cred:acme/mail/token}", "npx")
    forms = (SECRET, "top%2Fsecret%20%22value%22%207", "top/secret%20%22value%22%207")
    for form in (*forms, 'top/secret \\"value\\" 7', 'top\\/secret \\"value\\" 7'):
        assert resolver.redact(f"<{form}>") == "<[credential acme/mail/token]>"
    for user in ("u", "us", "use"):
        encoded = b64encode(f"{user}:{SECRET}".encode()).decode()
        assert "[credential acme/mail/token]" in resolver.redact(encoded)
    caplog.handler.addFilter(RedactingFilter(resolver))
    try:
        raise ValueError(SECRET)
    except ValueError:
        logging.getLogger("credentials").exception("failed with %s", SECRET)
    assert "secret" not in caplog.text
    assert caplog.text.count("[credential acme/mail/token]") == 2


def test_each_line_of_a_value_is_removed_from_what_a_program_writes_line_by_line(
    store: CredentialStore,
) -> None:
    store.set(NAME, "-----BEGIN KEY-----\nbGluZSBvbmU\nend", commands=["npx"])
    resolver = CredentialResolver(store)
    resolver.for_command("${cred:acme/mail/token}", "npx")
    assert resolver.redact("key: bGluZSBvbmU") == "key: [credential acme/mail/token]"
    assert resolver.redact("the end") == "the end"


def test_references_are_found_and_refused_in_nested_values() -> None:
    value = {"a": ["x", {"b/c": "see ${cred:x"}]}
    assert has_reference(value)
    assert not has_reference(["$${cred:a/b/c}", 1, None])
    with pytest.raises(InvalidArguments) as caught:
        refuse_references(value, "/config")
    assert caught.value.details["path"] == "/config/a/1/b~1c"
    with pytest.raises(InvalidArguments):
        refuse_references({"${cred:a/b/c}": 1})
