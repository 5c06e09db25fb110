"""Registries that are an index, over HTTP on loopback: searched together, and downloaded from."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from typing import Any

import pytest

from support.web.scripted_server import Answer, Seen, WebServer, web_server
from toolbus_toolkits.registries import (
    NotInRegistry,
    RegistryHub,
    RegistryRefused,
    RegistrySource,
    SourceUnavailable,
)

ZIP = b"PK\x05\x06" + bytes(18)


def entry(name: str, /, version: str = "1.0.0", **changes: Any) -> dict[str, Any]:
    """An entry of an index for ZIP."""
    return {
        "name": name,
        "kind": "skill",
        "version": version,
        "description": f"about {name}",
        "url": f"{name}-{version}.zip",
        "sha256": hashlib.sha256(ZIP).hexdigest(),
        "size": len(ZIP),
    } | changes


def index(*entries: Any) -> Answer:
    return Answer(body=json.dumps({"toolbus_index": "1", "entries": entries}).encode())


def serving(*entries: Any, **others: Answer) -> Any:
    """Answer with an index, with ZIP for every zip, and with others by their paths."""

    def answer(seen: Seen) -> Answer:
        found = others.get(seen.target.lstrip("/"))
        return found or (index(*entries) if seen.target.endswith(".json") else Answer(body=ZIP))

    return answer


def source(name: str, server: WebServer, **changes: Any) -> RegistrySource:
    settings: dict[str, Any] = {"url": f"{server.url}/index.json", "allow_private": True}
    return RegistrySource(name, **(settings | changes))


async def test_two_sources_are_searched_as_one_and_the_first_wins() -> None:
    ours = serving(entry("pdf", "1.9.0"), entry("pdf", "1.10.0"), entry("pdf", "2.0.0-beta.1"))
    theirs = serving(entry("pdf", "9.0.0"), entry("pdf", kind="bundle"), entry("mail"))
    async with web_server(ours) as one, web_server(theirs) as two:
        hub = RegistryHub([source("ours", one), source("theirs", two)])
        found = await asyncio.to_thread(hub.search)
        mail = await asyncio.to_thread(hub.search, "MAIL about")
        skills = await asyncio.to_thread(hub.search, source="theirs", kind="skill")
        assert (await asyncio.to_thread(hub.find, "mail")).source == "theirs"
    assert [(each.source, each.kind, each.name, each.version) for each in found.entries] == [
        ("ours", "skill", "pdf", "1.10.0"),
        ("theirs", "bundle", "pdf", "1.0.0"),
        ("theirs", "skill", "mail", "1.0.0"),
    ]
    assert found.entries[0].also_in == ("theirs",)
    assert [each.name for each in mail.entries] == ["mail"]
    assert [each.version for each in skills.entries] == ["9.0.0", "1.0.0"]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Answer(500), "answered 500: it has a problem"),
        (Answer(404), "answered 404"),
        (Answer(401), "needs a credential in `headers`"),
        (Answer(429, headers={"retry-after": "3600000"}), "try again in 3600000 s"),
        (Answer(body=b"<html>"), "did not answer with JSON"),
        (Answer(body=b"[" * 100_000), "did not answer with JSON"),
        (Answer(body=b'{"entries": []}'), "is this its address?"),
        (Answer(302, headers={"location": "file:///etc/passwd"}), "must begin with http"),
        (Answer(body=b"[" + b"[]," * 300_000 + b"[]]"), "has more than 500,000 values"),
        (Answer(body=b"\xff"), "is not UTF-8"),
        (index(*[{}] * 10_001), "more than 10,000 entries"),
    ],
)
async def test_one_bad_source_hurts_no_other_and_is_named(bad: Answer, words: str) -> None:
    async with web_server(lambda _: bad) as one, web_server(serving(entry("mail"))) as two:
        hub = RegistryHub([source("bad", one), source("good", two)])
        found = await asyncio.to_thread(hub.search)
        alone = RegistryHub([source("bad", one)])
        with pytest.raises(SourceUnavailable, match="no source can be searched: bad: "):
            await asyncio.to_thread(alone.search)
        with pytest.raises(SourceUnavailable, match="name the source to install from"):
            await asyncio.to_thread(alone.find, "mail")
    assert [each.name for each in found.entries] == ["mail"]
    assert [each.source for each in found.failures] == ["bad"]
    assert words in found.failures[0].reason


async def test_an_index_of_10_000_entries_with_own_keys_is_read() -> None:
    own: dict[str, Any] = {
        "description": "a, b and [c]: " * 60,
        "tags": ["x"] * 20,
        "author": {"name": "y"},
    }
    entries = [entry(f"skill-{number}", **own) for number in range(10_000)]
    async with web_server(serving(*entries)) as server:
        found = await asyncio.to_thread(RegistryHub([source("one", server)]).search)
    assert len(found.entries) == 10_000


async def test_dead_and_silent_sources_hurt_no_other() -> None:
    never = asyncio.Event()

    async def silent(_: Seen) -> Answer:
        await never.wait()
        return Answer()

    async with web_server(serving()) as gone:
        dead = source("dead", gone)
    async with web_server(silent) as one, web_server(serving(entry("mail"))) as two:
        public = source("private", two, allow_private=False)
        sources = [dead, source("silent", one), public, source("good", two)]
        found = await asyncio.to_thread(RegistryHub(sources, search_timeout_s=2).search)
    assert [each.name for each in found.entries] == ["mail"]
    reasons = {each.source: each.reason for each in found.failures}
    assert "cannot be reached" in reasons["dead"]
    assert "within 2 s" in reasons["silent"]
    assert "allow_private" in reasons["private"]


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../../admin"},
        {"name": "a/b"},
        {"name": "x" * 300},
        {"name": "a\u202eb"},
        {"version": "1.0\n"},
        {"kind": "avatar"},
        {"sha256": "0"},
        {"size": -1},
        {"size": 2**40},
        {"url": ""},
    ],
)
async def test_a_hostile_entry_is_left_out_with_the_reason(changes: dict[str, Any]) -> None:
    async with web_server(serving(entry("mail", **changes), 7, entry("pdf"))) as server:
        found = await asyncio.to_thread(RegistryHub([source("one", server)]).search)
    assert [each.name for each in found.entries] == ["pdf"]
    assert [each.reason[:11] for each in found.left_out] == ["/entries/0:", "/entries/1:"]


async def test_a_download_is_the_advertised_file_in_a_new_folder() -> None:
    waits = iter(
        [Answer(429, headers={"retry-after": "0"}), Answer(503, headers={"retry-after": "0"})]
    )
    plain = serving(entry("pdf"), entry("pdf", "2.0.0", url="/files/two.zip"))

    def answer(seen: Seen) -> Answer:
        is_zip = seen.target.endswith(".zip")
        return next(waits, None) or plain(seen) if is_zip else plain(seen)

    async with web_server(answer) as server:
        hub = RegistryHub([source("one", server)])
        path = await asyncio.to_thread(hub.download, "one", "pdf")
        old = await asyncio.to_thread(hub.download, "one", "pdf", "1.0.0")
        with pytest.raises(NotInRegistry, match=r"it has 1\.0\.0, 2\.0\.0"):
            await asyncio.to_thread(hub.download, "one", "pdf", "3")
        with pytest.raises(NotInRegistry, match="no source 'two': one"):
            await asyncio.to_thread(hub.download, "two", "pdf")
    targets = [each.target for each in server.seen if each.target.endswith(".zip")]
    assert targets == ["/files/two.zip"] * 3 + ["/pdf-1.0.0.zip"]
    assert path.read_bytes() == old.read_bytes() == ZIP
    assert path.parent != old.parent
    for each in (path, old):
        shutil.rmtree(each.parent)


@pytest.mark.parametrize(
    ("changes", "sent", "words"),
    [
        ({}, Answer(body=ZIP[:-1] + b"x"), "the source advertises"),
        ({}, Answer(body=ZIP + b"x"), "has more than 22 bytes"),
        ({}, Answer(body=ZIP[:-1]), "has 21 bytes, and the source advertises 22"),
        ({"size": 99}, Answer(body=ZIP), "has 22 bytes, and the source advertises 99"),
        ({}, Answer(404), "answered 404"),
        ({}, Answer(429, headers={"retry-after": "61"}), "try again in 61 s"),
        ({"url": "http://169.254.169.254/pdf-1.0.0.zip"}, Answer(), "never a public host"),
        ({"url": "http://me:pw@127.0.0.1/"}, Answer(), "contains a user or a password"),
        ({"kind": "bundle"}, Answer(), "is a bundle and a skill: name the kind"),
    ],
)
async def test_a_download_that_is_not_as_advertised_is_refused_and_removed(
    changes: dict[str, Any], sent: Answer, words: str, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    entries = (entry("pdf", **changes), *([entry("pdf")] if "kind" in changes else []))
    async with web_server(serving(*entries, **{"pdf-1.0.0.zip": sent})) as server:
        hub = RegistryHub([source("one", server)])
        with pytest.raises((RegistryRefused, SourceUnavailable, NotInRegistry), match=words):
            await asyncio.to_thread(hub.download, "one", "pdf")
    assert list(tmp_path.iterdir()) == []


async def test_a_name_is_not_taken_from_another_source_because_the_first_is_down() -> None:
    async with web_server(lambda _: Answer(500)) as one, web_server(serving(entry("a"))) as two:
        hub = RegistryHub([source("first", one), source("second", two)])
        with pytest.raises(SourceUnavailable, match=r"first: .*: name the source"):
            await asyncio.to_thread(hub.find, "a")
