"""Keys: accepted material, files, and that no message contains a key."""

from __future__ import annotations

import dataclasses
import errno
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt import api_jws

from toolbus.auth.keys import Algorithm, Key, KeyRing

SECRET = "s3cret-" + "x" * 32
ASYMMETRIC: list[Algorithm] = ["EdDSA", "ES256", "RS256", "PS256"]


def pem_of(private: object, password: bytes | None = None) -> str:
    assert hasattr(private, "private_bytes")
    lock = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    pkcs8 = serialization.PrivateFormat.PKCS8
    text: bytes = private.private_bytes(serialization.Encoding.PEM, pkcs8, lock)
    return text.decode()


def shared_key(kid: str = "k1", secret: str = SECRET) -> Key:
    return Key(kid=kid, alg="HS256", iss="acme", secret=secret)


@pytest.mark.parametrize("secret", ["", "short", "x" * 31])
def test_short_shared_secret_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        shared_key(secret=secret)


def test_file_with_a_short_secret_does_not_load(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[[key]]\nkid = "weak"\nalg = "HS256"\niss = "acme"\nsecret = "hunter2"\n')

    with pytest.raises(ValueError, match="at least 32 bytes") as refusal:
        KeyRing.load(file)

    assert str(file) in str(refusal.value)
    assert "'weak'" in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_secret_is_measured_in_bytes() -> None:
    assert shared_key(secret="ä" * 16).can_sign


@pytest.mark.parametrize("alg", ["HS256", *ASYMMETRIC])
def test_generated_key_signs_and_verifies(alg: Algorithm) -> None:
    key = Key.generate(kid="k1", iss="acme", alg=alg)

    assert key.check(key.sign(b"payload")) == b"payload"


def test_a_secret_signs_as_the_library_for_tokens_does() -> None:
    jws = shared_key(secret="ä" * 16).sign(b"\x00payload\xff")

    assert jws == api_jws.encode(b"\x00payload\xff", "ä" * 16, "HS256", {"kid": "k1"})


@pytest.mark.parametrize(
    "start", ["ssh-rsa", "ssh-ed25519", "ecdsa-sha2-nistp256", "---- BEGIN SSH2 PUBLIC KEY ----"]
)
def test_a_secret_that_begins_as_an_ssh_key_does_is_refused(start: str) -> None:
    with pytest.raises(ValueError, match="not a PEM or SSH key"):
        shared_key(secret=start + "A" * 32)


_LOADED = "; import sys; print(not {'jwt', 'cryptography'} & set(sys.modules))"


@pytest.mark.parametrize(
    ("program", "spares_them"),
    [
        ("import toolbus", True),
        ("from toolbus import Key; Key.generate(kid='k', iss='i').sign(b'payload')", True),
        ("import toolbus_server", False),
    ],
    ids=["a token is shown", "a secret signs", "a server, before anybody waits"],
)
def test_the_libraries_for_signatures_are_loaded_where_one_is_checked(
    program: str, spares_them: bool
) -> None:
    received = subprocess.run(
        [sys.executable, "-c", program + _LOADED], capture_output=True, text=True, check=True
    )
    assert received.stdout.strip() == str(spares_them)


def test_key_checks_no_algorithm_but_its_own() -> None:
    key = shared_key(secret="x" * 64)
    jws = api_jws.encode(b"payload", "x" * 64, "HS512", {"kid": "k1"})

    with pytest.raises(ValueError, match="signature is invalid"):
        key.check(jws)


@pytest.mark.parametrize("alg", ASYMMETRIC)
def test_public_half_checks_and_cannot_sign(alg: Algorithm) -> None:
    key = Key.generate(kid="k1", iss="acme", alg=alg)
    public = key.public_half()

    assert public.check(key.sign(b"payload")) == b"payload"
    assert not public.can_sign
    with pytest.raises(ValueError, match="cannot sign"):
        public.sign(b"payload")


def test_shared_secret_has_no_public_half() -> None:
    with pytest.raises(ValueError, match="no public half"):
        shared_key().public_half()


@pytest.mark.parametrize("alg", ["HS256", *ASYMMETRIC])
def test_material_never_shows_in_repr(alg: Algorithm) -> None:
    key = Key.generate(kid="k1", iss="acme", alg=alg)
    material = key.secret or (key.private or "").splitlines()[1]

    for shown in (repr(key), str(key), f"{key}", repr(KeyRing([key])), repr([key])):
        assert material not in shown
    assert "***" in repr(key)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"alg": "none"}, "alg must be one of"),
        ({"alg": "HS512"}, "alg must be one of"),
        ({"alg": "hs256"}, "alg must be one of"),
        ({"alg": ["HS256"]}, "alg must be one of"),
        ({"kid": ""}, "kid must be"),
        ({"kid": "a\nb"}, "kid must be"),
        ({"kid": 7}, "kid must be"),
        ({"kid": "k" * 129}, "kid must be"),
        ({"iss": ""}, "iss must be"),
        ({"secret": None}, "has secret, and nothing else"),
        ({"public": "x"}, "has secret, and nothing else"),
        ({"secret": 12345678901234567890}, "must be text"),
        ({"secret": "x" * 40 + "\ud800"}, "plain text"),
        ({"alg": "RS256"}, "has public or private"),
        ({"alg": "ES256", "secret": None}, "has public or private"),
        ({"alg": "ES256", "secret": None, "public": "x", "private": "x"}, "has public or private"),
        ({"alg": "ES256", "secret": None, "public": "x"}, "must be a public key in PEM"),
        ({"alg": "ES256", "secret": None, "private": "x"}, "must be a private key in PEM"),
    ],
)
def test_inconsistent_key_is_refused(fields: dict[str, object], message: str) -> None:
    whole: dict[str, object] = {"kid": "k1", "alg": "HS256", "iss": "acme", "secret": SECRET}

    with pytest.raises(ValueError, match=message):
        Key(**{**whole, **fields})  # type: ignore[arg-type]  # what a file may hold


def test_public_key_as_shared_secret_is_refused() -> None:
    pem = Key.generate(kid="k1", iss="acme", alg="RS256").public_half().public

    with pytest.raises(ValueError, match="not a PEM"):
        Key(kid="k1", alg="HS256", iss="acme", secret=pem)


@pytest.mark.parametrize(
    ("alg", "generate", "message"),
    [
        ("RS256", lambda: rsa.generate_private_key(65537, 1024), "at least 2048 bits"),
        ("RS256", lambda: ec.generate_private_key(ec.SECP256R1()), "not a key for RS256"),
        ("ES256", lambda: ec.generate_private_key(ec.SECP384R1()), "not a key for ES256"),
        ("EdDSA", ed448.Ed448PrivateKey.generate, "a type that no supported algorithm"),
        ("ES256", lambda: dsa.generate_private_key(1024), "a type that no supported algorithm"),
        ("EdDSA", lambda: ec.generate_private_key(ec.SECP256R1()), "not a key for EdDSA"),
    ],
)
def test_key_of_another_kind_is_refused(
    alg: Algorithm, generate: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Key(kid="k1", alg=alg, iss="acme", private=pem_of(generate()))


def test_private_key_under_a_password_is_refused() -> None:
    pem = pem_of(ec.generate_private_key(ec.SECP256R1()), b"password")

    with pytest.raises(ValueError, match="without a password"):
        Key(kid="k1", alg="ES256", iss="acme", private=pem)


def test_private_key_in_place_of_a_public_one_is_refused() -> None:
    private = Key.generate(kid="k1", iss="acme", alg="EdDSA").private

    with pytest.raises(ValueError, match="public must be a public key"):
        Key(kid="k1", alg="EdDSA", iss="acme", public=private)


def test_ring_survives_its_file(tmp_path: Path) -> None:
    algorithms: list[Algorithm] = ["HS256", *ASYMMETRIC]
    keys = [Key.generate(kid=f"k-{alg}", iss="acme", alg=alg) for alg in algorithms]
    keys.append(dataclasses.replace(keys[1].public_half(), kid="only checks"))
    file = tmp_path / "keys.toml"

    KeyRing(keys).save(file)

    assert list(KeyRing.load(file)) == keys


@given(text=st.text(st.characters(codec="utf-8"), min_size=32, max_size=60))
def test_any_secret_survives_the_file(text: str) -> None:
    try:
        key = shared_key(secret=text)
    except ValueError:
        return

    assert tomllib.loads(KeyRing([key]).to_toml())["key"][0]["secret"] == text


def test_saved_file_is_readable_by_its_owner_only_and_replaces_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text("old")
    file.chmod(0o644)

    KeyRing([shared_key()]).save(file)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert KeyRing.load(file).get("k1") == shared_key()
    assert list(tmp_path.iterdir()) == [file]


def test_failed_save_leaves_the_old_file_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.toml"
    KeyRing([shared_key("old")]).save(file)

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match=r"disk full: .*keys\.toml"):
        KeyRing([shared_key("new")]).save(file)

    assert [key.kid for key in KeyRing.load(file)] == ["old"]
    assert list(tmp_path.iterdir()) == [file]


def test_save_through_a_link_writes_its_target(tmp_path: Path) -> None:
    target = tmp_path / "real.toml"
    link = tmp_path / "keys.toml"
    target.touch()
    link.symlink_to(target)

    KeyRing([shared_key()]).save(link)

    assert link.is_symlink()
    assert len(KeyRing.load(target)) == 1


def test_first_key_that_signs_is_the_signing_key() -> None:
    public = Key.generate(kid="checks", iss="acme", alg="EdDSA").public_half()

    assert KeyRing([public, shared_key("a"), shared_key("b")]).signing_key == shared_key("a")
    assert KeyRing([public]).signing_key is None


def test_two_keys_of_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="two keys have the kid 'k1'"):
        KeyRing([shared_key(), shared_key(secret="y" * 40)])


@pytest.mark.parametrize("keys", [[None], ["k1"], None, 5])
def test_ring_of_anything_but_keys_is_a_type_error(keys: Any) -> None:
    with pytest.raises(TypeError, match=r"a KeyRing (takes a list of|contains) keys, not"):
        KeyRing(keys)


GOOD = f'kid = "k1"\nalg = "HS256"\niss = "acme"\nsecret = "{SECRET}"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"no \[\[key\]\]"),
        ("key = []", r"no \[\[key\]\]"),
        ('key = "x"', r"no \[\[key\]\]"),
        ("key = [1]", "key 1: must be"),
        ("[[key]\n", "line 1"),
        (f"key = {'[' * 100_000}", "maximum recursion depth"),
        (f"[[keys]]\n{GOOD}", "unknown field 'keys'"),
        (f"[[key]]\n{GOOD}sceret = 1\n", r"key 1 \('k1'\): unknown field 'sceret'"),
        (f"[[key]]\n{GOOD}\n[[key]]\nalg = 'HS256'\niss = 'acme'\n", "key 2: kid is missing"),
        (f"[[key]]\n{GOOD}\n[[key]]\n{GOOD}", "two keys have the kid 'k1'"),
        (f"[[key]]\n{GOOD.replace('HS256', 'HS1')}", r"key 1 \('k1'\): alg must be one of"),
    ],
)
def test_bad_file_is_refused_with_its_name_and_entry(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)

    with pytest.raises(ValueError, match=message) as refusal:
        KeyRing.load(file)

    assert str(refusal.value).startswith(str(file))
    assert SECRET not in str(refusal.value)


def test_file_that_is_not_text_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_bytes(b"\xff\xfe")

    with pytest.raises(ValueError, match=r"keys\.toml"):
        KeyRing.load(file)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("one:", None),
        ("one:a one:", None),
        ("one:a two:b two:", None),
        ("one:a two:", "issuer 'two' has no alias, and .* 2 issuers: write alias = .* kid '1'"),
        ("one: two:", "issuer 'one' has no alias"),
        ("one:a two:a", "issuers 'one' and 'two' have the same alias 'a': write another one"),
        ("one:a one:b", "issuer 'one' has the aliases 'a' and 'b': write one alias"),
    ],
)
def test_several_issuers_need_an_alias_each(given: str, fault: str | None) -> None:
    fields = [each.split(":") for each in given.split()]
    ring = KeyRing(
        Key(kid=str(at), alg="HS256", iss=issuer, alias=alias or None, secret=SECRET)
        for at, (issuer, alias) in enumerate(fields)
    )
    if fault is None:
        assert ring.aliases() == dict(reversed(fields))
    else:
        with pytest.raises(ValueError, match=fault):
            ring.aliases()


@pytest.mark.parametrize("alias", ["", "A", "a/b", "a b", "a" * 33, "\u0430", 7])
def test_malformed_alias_is_refused_with_its_issuer(alias: Any) -> None:
    with pytest.raises(ValueError, match=r"of issuer 'acme' must be 1 to 32 of a-z, 0-9 and '-'"):
        dataclasses.replace(shared_key(), alias=alias)


def test_alias_survives_the_file_and_the_public_half() -> None:
    key = Key.generate(kid="k", iss="acme", alg="EdDSA", alias="corp")
    assert KeyRing.from_toml(KeyRing([key]).to_toml()).aliases() == {"acme": "corp"}
    assert key.public_half().alias == "corp"


def test_key_whose_value_is_nested_too_deeply_is_refused_as_any_other() -> None:
    with pytest.raises(ValueError, match="recursion"):
        KeyRing.from_toml(f"[[key]]\nkid{'.a' * 10_000} = 1\n")
