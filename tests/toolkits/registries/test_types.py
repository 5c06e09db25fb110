"""Folders, registries of AgenticX and of ClawHub: searched, checked, and installed from."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from support.web.scripted_server import Answer, Seen, web_server
from toolbus_toolkits.bundles import BundleRefused, InstallPlan, InstallResult
from toolbus_toolkits.credentials import CredentialName, CredentialStore
from toolbus_toolkits.credentials.references import CredentialResolver
from toolbus_toolkits.registries import (
    NotInRegistry,
    RegistryHub,
    RegistryRefused,
    RegistrySource,
    SourceUnavailable,
)
from toolbus_toolkits.registries.sources import LocalRegistry

SECRET = "tops3cret-value"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def skill(name: str, version: str = "1.0.0") -> str:
    return f"---\nname: {name}\ndescription: about {name}\nversion: {version}\n---\nRead it.\n"


def bundle(name: str, version: str) -> dict[str, str]:
    manifest = {"toolbus_bundle": "1", "name": name, "version": version, "skills": ["inner"]}
    manifest["description"] = f"many {name}"
    return {"toolbus-bundle.yaml": json.dumps(manifest), "inner/SKILL.md": skill(f"{name}-skill")}


def zipped(files: dict[str, str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return data.getvalue()


def put(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def assert_empty(folder: Path) -> None:
    assert [each for each in folder.rglob("*") if each.is_file()] == []


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_folder_of_bundles_skills_and_zips_is_a_registry(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "shop"
    put(folder / "pdf", {"SKILL.md": skill("Pdf Tools"), "scripts/a.txt": "a"})
    put(folder / "set", bundle("office", "1.0.0"))
    put(folder / "broken", {"toolbus-bundle.yaml": "name: [", "SKILL.md": skill("x")})
    put(folder / "other", {"readme.txt": "no bundle"})
    (folder / "office-2.zip").write_bytes(zipped(bundle("office", "2.0.0")))
    (folder / "junk.zip").write_bytes(b"junk")
    hub = RegistryHub([RegistrySource("shop", path=folder)])
    found = hub.search()
    assert [(each.kind, each.name, each.version, each.description) for each in found.entries] == [
        ("bundle", "office", "2.0.0", "many office"),
        ("skill", "pdf-tools", "1.0.0", "about Pdf Tools"),
    ]
    assert [each.reason.partition(":")[0] for each in found.left_out] == ["broken", "junk.zip"]
    plan = hub.install("shop", "office", dry_run=True)
    assert isinstance(plan, InstallPlan)
    assert plan.origin == "shop:office@2.0.0"
    assert not home.exists()
    done = hub.install("shop", "office", "1.0.0")
    assert isinstance(done, InstallResult)
    assert (done.version, done.skills_installed) == ("1.0.0", ("office-skill",))
    assert hub.install("shop", "pdf-tools")
    assert (home / "installed-skills/pdf-tools/scripts/a.txt").read_text() == "a"
    with pytest.raises(BundleRefused, match=r"1\.0\.0"):
        hub.install("shop", "office")
    hub.install("shop", "office", replace=True)
    gone = RegistryHub([RegistrySource("gone", path=tmp_path / "gone")])
    with pytest.raises(SourceUnavailable, match="gone: its folder cannot be read"):
        gone.search()


async def test_what_changes_after_it_was_read_is_copied_within_limits(tmp_path: Path) -> None:
    folder = tmp_path / "shop/pdf"
    put(folder, {"SKILL.md": skill("pdf"), "a": "a"})
    (found,) = await LocalRegistry("shop", folder.parent).find("pdf", None)
    os.mkfifo(folder / "pipe")
    with pytest.raises(RegistryRefused, match=r".*pipe is not a regular file"):
        await found.save(tmp_path / "1")
    (folder / "pipe").unlink()
    os.truncate(folder / "a", 65 * 1024 * 1024)
    with pytest.raises(RegistryRefused, match="more than 1000 files or 67108864 bytes"):
        await found.save(tmp_path / "2")


def test_hidden_files_of_a_folder_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "shop/pdf"
    put(folder, {"SKILL.md": skill("pdf"), ".git/pack": ""})
    os.truncate(folder / ".git/pack", 65 * 1024 * 1024)
    plan = RegistryHub([RegistrySource("shop", path=folder.parent)]).offer("shop", "pdf").plan
    assert list(plan.files) == ["installed-skills/pdf/SKILL.md"]


def agx_skill(name: str, version: str, **changes: Any) -> dict[str, Any]:
    """A skill as AgenticX's server lists it, of its second form."""
    files = {"SKILL.md": skill(name, version), "notes/a.md": "a"}
    return {
        "name": name,
        "version": version,
        "description": f"about {name}",
        "checksum": digest(files["SKILL.md"]),
        "skill_content": files["SKILL.md"],
        "files": [
            {"path": path, "digest": f"sha256:{digest(text)}", "size": len(text)}
            for path, text in files.items()
        ],
        "file_contents": files,
    } | changes


def agx(*skills: dict[str, Any]) -> Callable[[Seen], Answer]:
    def answer(seen: Seen) -> Answer:
        query = parse_qs(urlsplit(seen.target).query).get("q", [""])[0]
        items = [each for each in skills if query in each["name"]]
        return Answer(body=json.dumps({"ok": True, "items": items, "count": 0}).encode())

    return answer


async def test_skills_of_both_forms_of_agenticx_are_installed_with_all_files(home: Path) -> None:
    first_form = agx_skill("mail", "1.0.0", files=None, file_contents=None)
    skills = (agx_skill("pdf", "0.9.0"), agx_skill("pdf", "0.10.0"), first_form)
    async with web_server(agx(*skills)) as server:
        hub = RegistryHub([RegistrySource("a", server.url, type="agx", allow_private=True)])
        found = await asyncio.to_thread(hub.search, "pdf")
        for name in ("pdf", "mail"):
            await asyncio.to_thread(hub.install, "a", name)
    assert [(each.name, each.version) for each in found.entries] == [("pdf", "0.10.0")]
    assert {seen.target for seen in server.seen} == {"/skills?q=pdf", "/skills?q=mail"}
    assert "version: 0.10.0" in (home / "installed-skills/pdf/SKILL.md").read_text()
    assert (home / "installed-skills/pdf/notes/a.md").read_text() == "a"
    assert (home / "installed-skills/mail/SKILL.md").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"checksum": digest("x")}, "the source advertises"),
        ({"checksum": ""}, "advertises none"),
        ({"file_contents": {"SKILL.md": skill("pdf")}}, "the files that it advertises"),
        ({"file_contents": {"a": "b"}}, "without a SKILL.md"),
        ({"file_contents": {"SKILL.md": skill("pdf"), "notes/a.md": "b"}}, "notes/a.md has the"),
        (
            {
                "files": None,
                "skill_content": skill("admin"),
                "checksum": digest(skill("admin")),
            },
            "calls itself 'admin'",
        ),
    ],
)
async def test_a_changed_skill_of_agenticx_is_refused(
    changes: dict[str, Any], words: str, home: Path
) -> None:
    async with web_server(agx(agx_skill("pdf", "1.0.0", **changes))) as server:
        hub = RegistryHub([RegistrySource("a", server.url, type="agx", allow_private=True)])
        with pytest.raises(RegistryRefused, match=words):
            await asyncio.to_thread(hub.install, "a", "pdf")
    assert_empty(home)


@pytest.mark.parametrize("path", ["../../escaped", "/etc/escaped", "a\\..\\b", "a/\u202eb"])
async def test_a_path_that_leaves_its_folder_is_refused(path: str, tmp_path: Path) -> None:
    files = {"SKILL.md": skill("pdf"), path: "x"}
    listed = [
        {"path": name, "digest": f"sha256:{digest(text)}", "size": len(text)}
        for name, text in files.items()
    ]
    hostile = agx_skill("pdf", "1.0.0", files=listed, file_contents=files)
    async with web_server(agx(hostile)) as server:
        hub = RegistryHub([RegistrySource("a", server.url, type="agx", allow_private=True)])
        with pytest.raises(RegistryRefused, match="not a plain path"):
            await asyncio.to_thread(hub.install, "a", "pdf")
    assert_empty(tmp_path)


FILES = {"SKILL.md": skill("pdf", "1.2.0"), "scripts/a.py": "print(1)\n"}


def clawhub(**changes: Any) -> Callable[[Seen], Answer]:
    """Answer as ClawHub does for one skill, which two owners have."""
    files = [
        {"path": path, "size": len(text), "sha256": digest(text), "contentType": "text/plain"}
        for path, text in FILES.items()
    ]
    result = {"score": 1.0, "slug": "pdf", "summary": None, "version": None}
    found = [result | {"ownerHandle": "ann"}, result | {"ownerHandle": "bob"}, {"slug": "../x"}]
    item = {"slug": "pdf", "summary": "about pdf", "latestVersion": {"version": "1.2.0"}}
    values: dict[str, Any] = {
        "search": {"results": found},
        "skills": {"items": [item], "nextCursor": "more"},
        "skills/pdf": {"skill": item, "latestVersion": {"version": "1.2.0"}, "moderation": None},
        "skills/pdf/versions/1.2.0": {"skill": {}, "version": {"version": "1.2.0", "files": files}},
        "download": zipped(FILES | {"_meta.json": "{}"}),
    } | changes

    def answer(seen: Seen) -> Answer:
        value = values.get(urlsplit(seen.target).path.removeprefix("/api/v1/"))
        if value is None:
            return Answer(404, b"Skill not found")
        return Answer(body=value if isinstance(value, bytes) else json.dumps(value).encode())

    return answer


def claw(url: str) -> RegistryHub:
    return RegistryHub([RegistrySource("c", url, type="clawhub", allow_private=True)])


async def test_a_skill_of_clawhub_is_found_and_installed_with_its_owner(home: Path) -> None:
    async with web_server(clawhub()) as server:
        hub = claw(f"{server.url}/api/v1/")
        found = await asyncio.to_thread(hub.search, "pdf")
        every = await asyncio.to_thread(hub.search)
        await asyncio.to_thread(hub.install, "c", "@ann/pdf")
        for missing in [("nothing",), ("pdf", "9.9.9")]:
            with pytest.raises(NotInRegistry):
                await asyncio.to_thread(hub.download, "c", *missing)
    assert [each.name for each in found.entries] == ["@ann/pdf", "@bob/pdf"]
    assert len(found.left_out) == 1
    assert [(each.name, each.version) for each in every.entries] == [("pdf", "1.2.0")]
    targets = [each.target for each in server.seen]
    assert targets[0] == "/api/v1/search?q=pdf&limit=50"
    assert "/api/v1/download?slug=pdf&version=1.2.0&ownerHandle=ann" in targets
    assert (home / "installed-skills/pdf/scripts/a.py").read_text() == "print(1)\n"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"download": zipped(FILES | {"more.txt": "x"})}, "advertised files: 'more.txt'|more.txt"),
        ({"download": zipped({"SKILL.md": skill("pdf")})}, "advertised files"),
        ({"download": zipped(FILES | {"scripts/a.py": "print(2)\n"})}, "SHA-256 or size"),
        ({"download": zipped({"../a": ""})}, "not a plain path"),
        ({"download": zipped(FILES | {"big.txt": "0" * 9_000_000})}, "more than 8388608 bytes"),
        ({"download": b"junk"}, "neither a folder nor a zip"),
        ({"skills/pdf": {"latestVersion": {"version": 7}}}, "its answer is not valid"),
        (
            {
                "skills/pdf": {
                    "latestVersion": {"version": "1.2.0"},
                    "moderation": {"isMalwareBlocked": True},
                }
            },
            "blocked it as malware",
        ),
        (
            {
                "skills/pdf/versions/1.2.0": {"version": {"version": "1.2.0"}},
                "download": zipped(bundle("pdf", "1.2.0")),
            },
            "is a bundle, not a skill",
        ),
    ],
)
async def test_a_changed_or_blocked_skill_of_clawhub_is_refused(
    changes: dict[str, Any], words: str, home: Path
) -> None:
    async with web_server(clawhub(**changes)) as server:
        with pytest.raises(RegistryRefused, match=words):
            await asyncio.to_thread(claw(server.url).install, "c", "pdf")
    assert_empty(home)


async def test_what_the_registry_warns_of_is_in_the_offer() -> None:
    changes = {
        "skills/pdf": {
            "latestVersion": {"version": "1.2.0"},
            "moderation": {"isSuspicious": True, "isMalwareBlocked": False},
        },
        "skills/pdf/versions/1.2.0": {"version": {"version": "1.2.0"}},
    }
    async with web_server(clawhub(**changes)) as server:
        offer = await asyncio.to_thread(claw(server.url).offer, "c", "pdf")
    assert len(offer.notes) == 2
    assert "suspicious" in offer.notes[0]
    assert "no hashes" in offer.notes[1]


async def test_credentials_go_to_the_host_of_the_source_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = zipped({"SKILL.md": skill("pdf")})
    async with web_server(lambda _: Answer(body=data)) as other:

        def answer(seen: Seen) -> Answer:
            listed = {
                "name": "pdf",
                "kind": "skill",
                "version": "1.0.0",
                "description": seen.headers.get("authorization", ""),
                "url": f"{other.url}/pdf.zip",
                "sha256": hashlib.sha256(data).hexdigest(),
                "size": len(data),
            }
            return Answer(body=json.dumps({"toolbus_index": "1", "entries": [listed]}).encode())

        async with web_server(answer) as server:
            store = _store(tmp_path, monkeypatch)
            name = CredentialName.parse("acme/registry/token")
            headers = {"Authorization": "Bearer ${cred:acme/registry/token}"}
            source = RegistrySource(
                "a", f"{server.url}/index.json", headers=headers, allow_private=True
            )
            assert "Bearer" not in repr(source)
            hub = RegistryHub([source], resolver=CredentialResolver(store))
            store.set(name, SECRET, hosts=["registry.example.org"])
            with pytest.raises(SourceUnavailable, match="may not go to the host"):
                await asyncio.to_thread(hub.search)
            with pytest.raises(SourceUnavailable, match="is not resolved here"):
                await asyncio.to_thread(RegistryHub([source]).search)
            assert server.seen == []
            store.set(name, SECRET, hosts=[f"127.0.0.1:{server.port}"])
            found = await asyncio.to_thread(hub.search)
            await asyncio.to_thread(hub.install, "a", "pdf")
    assert server.seen[0].headers["authorization"] == f"Bearer {SECRET}"
    assert found.entries[0].description == "Bearer [credential acme/registry/token]"
    assert "authorization" not in other.seen[0].headers


def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CredentialStore:
    from toolbus_toolkits.credentials.encrypted_file import create_key_file

    create_key_file(tmp_path / "key")
    monkeypatch.setenv("TOOLBUS_CREDENTIALS_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    return CredentialStore.open()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "../x", "url": "https://a.org/i.json"}, "letters, digits"),
        ({"name": "a"}, "a `url` or a `path`"),
        ({"name": "a", "url": "https://a.org/i.json", "path": Path()}, "not both"),
        ({"name": "a", "url": "ftp://a.org/i.json"}, "begin with http"),
        ({"name": "a", "url": "https://a.org/"}, "give the `type`"),
        ({"name": "a", "url": "https://a.org/", "type": "local"}, "has a `path`"),
        ({"name": "a", "path": Path(), "type": "agx"}, "has a `url`"),
        ({"name": "a", "url": "https://me:pw@a.org/i.json"}, "must not hold a credential"),
        ({"name": "a", "url": "https://a.org/i.json?k=${cred:a/b/c}"}, "must not hold"),
    ],
)
def test_a_source_with_bad_values_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RegistrySource(**values)


def test_two_sources_of_one_name_are_refused() -> None:
    source = RegistrySource("a", path=Path())
    with pytest.raises(ValueError, match="two sources have the name 'a'"):
        RegistryHub([source, source])
