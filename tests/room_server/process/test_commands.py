"""`toolbus serve` and `toolbus key`: what they refuse, what they write, and how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jwt import PyJWKSet, decode

from support.processes.command_line import CommandLine, Running
from toolbus.auth.grants import ApiScope
from toolbus.auth.keys import Algorithm, Key, KeyRing
from toolbus.auth.tokens import ParticipantToken
from toolbus_server.process import commands
from toolbus_server.process.key_files import KeyReloader, add_key, check_writers, dev_keys


@pytest.fixture
def toolbus(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# serve


def test_server_without_keys_refuses_to_start_and_names_the_remedy(toolbus: CommandLine) -> None:
    outcome = toolbus.run("serve", "--port", "0")
    assert (outcome.code, outcome.out) == (2, "")
    assert "toolbus key create" in outcome.err
    assert "toolbus serve --dev" in outcome.err


def test_error_for_a_wrong_value_names_the_valid_ones(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("serve", "--dev", "--metrics", "maybe")
    assert outcome.code == 2
    assert "'maybe' is not one of 'on', 'off'" in outcome.err
    assert "Value error" not in outcome.err
    assert "Value error" not in toolbus.run_here("key", "create", "--alg", "none").err


@pytest.mark.parametrize(
    ("host", "listens_on"),
    [
        *(("127.0.0.1", "127.0.0.1"), ("127.0.0.2", "127.0.0.2"), ("127.255.1.9", "127.255.1.9")),
        *(("localhost", "127.0.0.1"), ("LOCALHOST", "127.0.0.1"), ("::1", "::1")),
    ],
)
def test_development_server_listens_on_every_address_of_loopback(
    host: str, listens_on: str, toolbus: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[Any] = []
    monkeypatch.setattr(commands, "run", lambda _, given, *rest: settings.append(given))
    outcome = toolbus.run_here("serve", "--dev", "--host", host)
    assert (outcome.code, [given.host for given in settings]) == (0, [listens_on])


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "example.org", "127.example.org", "128.0.0.1", "::2"]
)
def test_development_server_refuses_to_leave_loopback(toolbus: CommandLine, host: str) -> None:
    outcome = toolbus.run_here("serve", "--dev", "--host", host, "--port", "0")
    assert (outcome.code, outcome.out) == (2, "")
    assert "loopback only" in outcome.err
    assert not (toolbus.folder / "home").exists()


@pytest.mark.parametrize(
    ("host", "is_warned"),
    [
        *(("0.0.0.0", True), ("::", True), ("192.0.2.1", True), ("bus.example", True)),
        *(("127.0.0.1", False), ("127.8.0.1", False), ("::1", False), ("LOCALHOST", False)),
    ],
)
def test_server_without_tls_warns_once_unless_it_is_on_loopback(
    host: str, is_warned: bool, toolbus: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "run", lambda *_: None)
    toolbus.run_here("key", "create")
    outcome = toolbus.run_here("serve", "--keys", "keys.toml", "--host", host)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.count(f"NO TLS on {host}: ") == outcome.err.count("TLS on") == is_warned


def test_development_server_refuses_to_listen_everywhere(toolbus: CommandLine) -> None:
    outcome = toolbus.run("serve", "--dev", "--host", "0.0.0.0", "--port", "0")
    assert (outcome.code, outcome.out) == (2, "")


def test_development_server_warns_and_does_not_print_its_key(
    toolbus: CommandLine,
) -> None:
    with toolbus.start("serve", "--dev", "--port", "0") as server:
        ready = server.line()
        outcome = server.end()
    path = toolbus.folder / "home" / "dev-keys.toml"
    assert ready.startswith("listening on ws://127.0.0.1:")
    assert not ready.endswith(":0\n")
    assert outcome.code == 0
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("DEVELOPMENT SERVER")
    assert mode_of(path) == 0o600
    secret = next(iter(KeyRing.load(path))).secret
    assert secret is not None
    assert secret not in outcome.err + ready


def test_bug_in_reloading_keys_ends_the_server(
    toolbus: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def follow(_: KeyReloader) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(KeyReloader, "follow", follow)
    with pytest.raises(LookupError, match="a bug"):
        toolbus.run_here("serve", "--dev", "--port", "0")


def test_ctrl_c_ends_the_server_with_0(toolbus: CommandLine) -> None:
    with toolbus.serving() as (server, url):
        assert url.startswith("ws://127.0.0.1:")
        assert server.end(signal.SIGINT).code == 0


def test_server_without_stdin_and_stderr_ends_with_0(toolbus: CommandLine) -> None:
    start = 'exec "$0" -m toolbus serve --dev --port 0 <&- 2>&-'
    with subprocess.Popen(
        ["sh", "-c", start, sys.executable],
        env=toolbus.environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        running = Running(server)
        assert running.line().startswith("listening on ws://127.0.0.1:")
        assert running.end().code == 0


def test_server_with_keys_accepts_their_tokens(toolbus: CommandLine) -> None:
    assert toolbus.run_here("key", "create", "--out", str(toolbus.folder / "k.toml")).code == 0
    made = toolbus.run_here(
        *("token", "create", "--name", "eve", "--preset", "user"),
        *("--keys", str(toolbus.folder / "k.toml")),
    )
    with toolbus.serving("--keys", "k.toml") as (_, url):
        outcome = toolbus.at(url).run("tools", "--token", made.out.strip(), "--json")
    assert (outcome.code, outcome.value) == (0, [])


@pytest.mark.parametrize("keys", [["--keys", "k.toml"], ["--dev"]])
def test_port_in_use_is_reported_in_one_line(toolbus: CommandLine, keys: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        add_key(toolbus.folder / "k.toml", Key.generate(kid="a", iss="b"))
        outcome = toolbus.run("serve", *keys, "--port", str(port))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == (
        f"toolbus: port {port} is in use: stop what listens there, or choose another with --port\n"
    )


def test_missing_or_invalid_key_file_ends_with_2(toolbus: CommandLine) -> None:
    missing = toolbus.run_here("serve", "--keys", "/no/keys.toml", "--json")
    assert missing.code == 2
    assert missing.error["code"] == "invalid_arguments"
    (toolbus.folder / "k.toml").write_text("[[key]]\nkid = 1")
    broken = toolbus.run_here("serve", "--keys", str(toolbus.folder / "k.toml"))
    assert broken.code == 2
    assert "k.toml" in broken.err


def test_missing_key_set_is_named_with_its_table(toolbus: CommandLine) -> None:
    (toolbus.folder / "k.toml").write_text(
        '[[issuer]]\niss = "https://idp"\njwks = "gone.json"\n'
        '[[rule]]\niss = "https://idp"\nmatch = { sub = "a" }\npreset = "user"\n'
    )
    outcome = toolbus.run_here("serve", "--keys", "k.toml")
    fault = "k.toml: issuer 1 ('https://idp'): jwks: gone.json: No such file or directory"
    assert (outcome.code, outcome.err) == (2, f"toolbus: {fault}\n")


@pytest.mark.parametrize(("mode", "is_private"), [(0o640, True), (0o600, True), (0o644, False)])
def test_private_keys_that_others_can_read_are_warned_of_once(
    mode: int, is_private: bool, toolbus: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "run", lambda *_: None)
    key = Key.generate(kid="a", iss="b", alg="EdDSA")
    keys = toolbus.folder / "k.toml"
    add_key(keys, key if is_private else key.public_half())
    keys.chmod(mode)
    outcome = toolbus.run_here("serve", "--keys", "k.toml")
    assert outcome.code == 0
    assert outcome.err.count("other users can read k.toml") == (mode == 0o640)
    assert outcome.err.count("chmod 600 k.toml") == (mode == 0o640)


@pytest.mark.parametrize(("options", "count"), [([], 1), (["--state", "state"], 0)])
def test_server_without_state_says_so_once_it_listens(
    options: list[str], count: int, toolbus: CommandLine
) -> None:
    add_key(toolbus.folder / "k.toml", Key.generate(kid="a", iss="b"))
    with toolbus.start("serve", "--keys", "k.toml", "--port", "0", *options) as server:
        server.line()
        assert server.end().err.count("revocations are lost when this server ends") == count


@pytest.mark.parametrize(
    ("place", "mode", "owner", "advice"),
    [
        ("keys/k.toml", 0o666, None, "chmod go-w "),
        ("keys", 0o777, None, "chmod go-w "),
        ("keys/k.toml", 0o640, 12_345, f"chown {os.getuid()} "),
        ("keys", 0o755, 12_345, f"chown {os.getuid()} "),
        ("state", 0o777, None, "chmod go-w "),
        ("state", 0o755, 12_345, f"chown {os.getuid()} "),
    ],
)
def test_key_file_or_state_that_others_can_change_is_refused(
    toolbus: CommandLine, place: str, mode: int, owner: int | None, advice: str
) -> None:
    keys = toolbus.folder / "keys/k.toml"
    keys.parent.mkdir()
    (toolbus.folder / "state").mkdir()
    add_key(keys, Key.generate(kid="a", iss="b"))
    (toolbus.folder / "link.toml").symlink_to(keys)
    changed = toolbus.folder / place
    changed.chmod(mode)
    if owner is not None:
        if os.getuid() != 0:
            pytest.skip("only root can give a file to another user")
        os.chown(changed, owner, -1)

    refused = toolbus.run_here("serve", "--keys", "link.toml", "--state", "state")

    assert refused.code == 2
    assert f"{advice}{changed}" in refused.err


def test_state_folder_that_cannot_be_used_ends_the_server_with_what_to_do(
    toolbus: CommandLine,
) -> None:
    (toolbus.folder / "file").touch()
    (toolbus.folder / "other" / "tokens.db").mkdir(parents=True)
    with toolbus.serving("--dev", "--state", "used"):
        for folder, code, words in (
            ("used", 6, "another server uses the folder used\n  next: stop that server; "),
            ("file", 2, "--state file: File exists: name a folder in which this user can write"),
            ("other", 6, "\n  next: name a folder in which this user can write, or remove the "),
        ):
            refused = toolbus.run("serve", "--dev", "--port", "0", "--state", folder)
            assert (refused.code, refused.out) == (code, "")
            assert words in refused.err


def test_group_that_only_its_owner_has_may_write_the_keys(
    toolbus: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = toolbus.folder / "k.toml"
    add_key(keys, Key.generate(kid="a", iss="b"))
    keys.chmod(0o660)
    found = keys.stat()
    owner = SimpleNamespace(pw_name="ann", pw_gid=found.st_gid)
    group = SimpleNamespace(gr_name="ann", gr_gid=found.st_gid, gr_mem=list[str]())
    monkeypatch.setattr("pwd.getpwuid", lambda _: owner)
    monkeypatch.setattr("grp.getgrgid", lambda _: group)
    check_writers(keys)
    group.gr_mem = ["bob"]
    with pytest.raises(ValueError, match="other users can change"):
        check_writers(keys)


def test_flags_override_variables_and_those_the_file(toolbus: CommandLine) -> None:
    config = toolbus.folder / "server.toml"
    config.write_text('host = "from.file"\nport = 1\n')
    start = ("serve", "--dev", "--config", str(config))
    by_file = toolbus.run_here(*start)
    by_variable = toolbus.run_here(*start, TOOLBUS_LISTEN_HOST="from.variable")
    by_flag = toolbus.run_here(*start, "--host", "from.flag", TOOLBUS_LISTEN_HOST="from.variable")
    assert "'from.file'" in by_file.err
    assert "'from.variable'" in by_variable.err
    assert "'from.flag'" in by_flag.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hots = 1", "unknown setting 'hots'"),
        ("not toml", "is not a TOML file"),
        (f"a = {'[' * 100_000}", "is not a TOML file"),
        (None, "No such file"),
        ("port = true", "port: must be a whole number"),
        ("port = '1'", "port: must be a whole number"),
        ("port = 99999", "port: "),
        ("host = 5", "host: must be text"),
        ("host = ''", "host: '' is not an address to listen on"),
        ("drain = true", "drain: must be a number"),
        ("drain = inf", "drain: inf is not a number of seconds from 0 to 2592000"),
        ("metrics = true", "metrics: must be 'on' or 'off'"),
        ("allow_query_token = 1", "allow_query_token: must be true or false"),
        ("trusted_proxies = '10.0.0.0/8'", "trusted_proxies: must be a list of texts"),
    ],
)
def test_invalid_settings_file_ends_with_2_and_names_the_setting(
    toolbus: CommandLine, text: str | None, message: str
) -> None:
    config = toolbus.folder / "c.toml"
    if text is not None:
        config.write_text(text)
    outcome = toolbus.run_here("serve", "--dev", "--config", str(config), COLUMNS="500")
    assert outcome.code == 2
    assert f"{config}" in outcome.err
    assert message in outcome.err


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["--drain", "inf"], {}, "inf is not a number of seconds from 0 to 2592000"),
        (["--drain", "nan"], {}, "nan is not a number of seconds from 0 to 2592000"),
        ([], {"TOOLBUS_DRAIN": "1e10"}, "10000000000.0 is not a number of seconds from 0 to"),
        (["--max-waiting-memory", "64MB"], {}, "'64MB' is not a whole number of MiB: write 64"),
        ([], {"TOOLBUS_MAX_WAITING_MEMORY": "-1"}, "'-1' is not a whole number of MiB"),
        (["--host", ""], {}, "'' is not an address to listen on"),
        (["--host", "a" * 64], {}, "is not an address to listen on"),
        ([], {"TOOLBUS_HOME": "/dev/null"}, "TOOLBUS_HOME must name a folder"),
    ],
)
def test_invalid_option_ends_the_server_with_2_before_it_listens(
    toolbus: CommandLine, arguments: list[str], variables: dict[str, str], message: str
) -> None:
    outcome = toolbus.run_here("serve", "--dev", "--port", "0", *arguments, **variables)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err


# Key files


def test_development_key_is_reused(tmp_path: Path) -> None:
    path = tmp_path / "home" / "dev-keys.toml"
    first, again = dev_keys(path), dev_keys(path)
    assert first.to_toml() == again.to_toml()
    assert [each.name for each in path.parent.iterdir()] == ["dev-keys.toml"]


def test_processes_that_start_at_once_get_one_development_key(tmp_path: Path) -> None:
    path = tmp_path / "dev-keys.toml"
    with ThreadPoolExecutor(8) as threads:
        rings = list(threads.map(dev_keys, [path] * 8))
    assert len({ring.to_toml() for ring in rings}) == 1


def test_key_file_is_readable_by_its_owner_only(toolbus: CommandLine) -> None:
    path = toolbus.folder / "k.toml"
    outcome = toolbus.run_here("key", "create", "--out", str(path), "--kid", "one", "--iss", "us")
    assert (outcome.code, outcome.out) == (0, "one\n")
    assert mode_of(path) == 0o600
    key = KeyRing.load(path).signing_key
    assert key is not None
    assert (key.kid, key.iss, key.alg) == ("one", "us", "HS256")
    assert key.secret is not None
    assert key.secret not in outcome.err


@pytest.mark.parametrize("alg", ["EdDSA", "ES256", "RS256"])
def test_second_key_is_appended_and_gets_the_issuer_of_the_first(
    toolbus: CommandLine, alg: str
) -> None:
    path = toolbus.folder / "k.toml"
    add_key(path, Key.generate(kid="one", iss="us"))
    before = "# mine\n" + path.read_text()
    path.write_text(before)
    outcome = toolbus.run_here(
        "key", "create", "--out", str(path), "--kid", "two", "--alg", alg, "--json"
    )
    facts = {"kid": "two", "alg": alg, "iss": "us", "file": str(path), "signs": False}
    assert json.loads(outcome.out) == facts
    assert path.read_text().startswith(before)
    assert [key.kid for key in KeyRing.load(path)] == ["one", "two"]
    assert mode_of(path) == 0o600


def test_later_key_has_the_algorithm_of_the_first(toolbus: CommandLine) -> None:
    for flags in (["--alg", "EdDSA"], [], ["--alg", "ES256"], []):
        assert toolbus.run_here("key", "create", *flags).code == 0
    algs = [key.alg for key in KeyRing.load(toolbus.folder / "keys.toml")]
    assert algs == ["EdDSA", "EdDSA", "ES256", "EdDSA"]


def test_no_private_key_is_added_to_public_halves(toolbus: CommandLine) -> None:
    public = toolbus.folder / "public.toml"
    KeyRing([Key.generate(kid="one", iss="us", alg="EdDSA").public_half()]).save(public)
    before = public.read_text()
    outcome = toolbus.run_here("key", "create", "--out", "public.toml")
    assert (outcome.code, "only public halves" in outcome.err) == (2, True)
    assert public.read_text() == before


def test_key_with_an_existing_id_is_refused_and_the_file_unchanged(toolbus: CommandLine) -> None:
    path = toolbus.folder / "k.toml"
    add_key(path, Key.generate(kid="one", iss="us"))
    before = path.read_text()
    outcome = toolbus.run_here("key", "create", "--out", str(path), "--kid", "one")
    assert (outcome.code, outcome.out) == (2, "")
    assert path.read_text() == before
    assert [each.name for each in toolbus.folder.iterdir()] == ["k.toml"]


def test_file_that_is_not_a_key_file_is_not_changed(toolbus: CommandLine) -> None:
    path = toolbus.folder / "k.toml"
    path.write_text("title = 'notes'\n")
    assert toolbus.run_here("key", "create", "--out", str(path)).code == 2
    assert path.read_text() == "title = 'notes'\n"


def test_issuers_without_aliases_end_the_server_with_2_and_name_the_issuer(
    toolbus: CommandLine,
) -> None:
    toolbus.run_here("key", "create", "--iss", "one")
    second = toolbus.run_here("key", "create", "--iss", "two", "--alias", "two")
    assert "no server starts with this file yet: issuer 'one' has no alias" in second.err
    toolbus.run_here("key", "create", "--iss", "two")
    keys = KeyRing.load(toolbus.folder / "keys.toml")
    assert [each.alias for each in keys] == [None, "two", "two"]
    refused = toolbus.run_here("serve", "--keys", "keys.toml", "--port", "0")
    assert refused.code == 2
    assert "issuer 'one' has no alias, and there are keys of 2 issuers: write alias" in refused.err


def test_commands_show_and_read_the_alias_of_each_issuer(toolbus: CommandLine) -> None:
    for name in ("one", "two"):
        toolbus.run_here("key", "create", "--iss", name, "--alias", name, "--out", f"{name}.toml")
    both = [
        each for name in ("one", "two") for each in KeyRing.load(toolbus.folder / f"{name}.toml")
    ]
    KeyRing(both).save(toolbus.folder / "keys.toml")
    tokens = [
        ParticipantToken(name="ann", room=["*"], api=ApiScope.full()).to_jwt(key) for key in both
    ]
    with toolbus.serving("--keys", "keys.toml") as (_, url):
        there = toolbus.at(url)
        with there.hosting("toolbus_toolkits.clock:clock", "--token", tokens[0]):

            def shown(*command: str) -> str:
                outcome = there.run_here(*command, "--token", tokens[1])
                return outcome.out + outcome.err

            assert "one/ann" in shown("room", "participants")
            assert "two/ann" in shown("room", "participants")
            assert " one/ann " in shown("tools")
            assert "clock" in shown("tools", "--participant", "one/ann")
            assert "no visible toolkit" in shown("tools", "--participant", "ann")
            assert "+" in shown("call", "clock.now", "--participant", "one/ann")
            assert "not_found" in shown("call", "clock.now", "--participant", "ann")
            unknown = shown("call", "clock.now", "--participant", "x/ann")
            assert "invalid_arguments" in unknown
            assert "next: `toolbus room participants` lists" in unknown
            assert "would run at one/ann" in shown("call", "clock.now", "--explain")
            assert "Owner: one/ann (issuer one)" in shown("stubs", "clock")
            assert "closed 1 connection" in shown("admin", "kick", "one/ann", "--room", "main")
        with there.hosting("toolbus_toolkits.clock:clock", "--token", tokens[0]):
            revoke = ("admin", "revoke", "one/ann", "--room", "main")
            assert "alias of another issuer" in shown(*revoke, "--issuer", "two")
            assert shown(*revoke).startswith("revoked; closed 1 connection; tokens of one/ann")


# key public


@pytest.mark.parametrize("alg", ["EdDSA", "ES256", "RS256"])
def test_public_halves_check_tokens_as_a_key_file_and_as_a_key_set(
    alg: Algorithm, toolbus: CommandLine
) -> None:
    for kid in ("old", "new"):
        toolbus.run_here("key", "create", "--alg", alg, "--kid", kid, "--iss", "us")
    jwt = toolbus.run_here(
        *("token", "create", "--name", "ann", "--preset", "user", "--keys", "keys.toml")
    ).out.strip()
    public = toolbus.run_here("key", "public")
    assert "PRIVATE" not in public.out
    ring = KeyRing.from_toml(public.out)
    assert [(key.kid, key.iss, key.can_sign) for key in ring] == [
        ("old", "us", False),
        ("new", "us", False),
    ]
    assert ParticipantToken.from_jwt(jwt, ring).name == "ann"
    key_set = PyJWKSet.from_dict(toolbus.value_here("key", "public", "--json"))
    claims = decode(jwt, key_set["old"], audience="toolbus")
    assert (claims["sub"], [key.key_id for key in key_set.keys]) == ("ann", ["old", "new"])


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_public_halves_are_written_to_a_file(toolbus: CommandLine, flags: list[str]) -> None:
    toolbus.run_here("key", "create", "--alg", "EdDSA")
    public = toolbus.folder / "public.toml"
    for _ in range(2):  # a public file is replaced
        outcome = toolbus.run_here("key", "public", *flags, "--out", "public.toml")
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "wrote public.toml\n")
        assert public.read_text() == toolbus.run_here("key", "public", *flags).out
    public.write_text("[[issuer]]\n")
    for name in ("public.toml", "keys.toml"):
        before = (toolbus.folder / name).read_text()
        outcome = toolbus.run_here("key", "public", *flags, "--out", name)
        assert (outcome.code, "would be lost" in outcome.err) == (2, True)
        assert (toolbus.folder / name).read_text() == before


def test_file_with_a_shared_secret_has_no_public_halves(toolbus: CommandLine) -> None:
    toolbus.run_here("key", "create", "--alg", "EdDSA")
    toolbus.run_here("key", "create", "--kid", "shared", "--alg", "HS256")
    for flags in ((), ("--json",)):
        outcome = toolbus.run_here("key", "public", "--keys", "keys.toml", "--out", "p", *flags)
        assert (outcome.code, outcome.out) == (2, "")
        assert "key 'shared' has no public half" in outcome.err
        assert not (toolbus.folder / "p").exists()
    assert toolbus.run_here("key", "public", "--keys", "nowhere").code == 2
