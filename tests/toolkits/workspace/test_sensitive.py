"""Files that a person decides about."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolbus_toolkits.workspace import SensitivePaths
from toolbus_toolkits.workspace import sensitive as tables

SECRETS = """
.env ./.env a/.env /a/.env.local .ENV .envrc prod.env .env~ .env-prod .flaskenv .env/x
.e\u200bnv \uff0eenv a//.env
a/./.env
id_rsa .ssh .ssh/config ~/.ssh/known_hosts a/.SSH/x x.pem X.PEM x.key x.p12 x.kdbx
id_rsa~ x.pem.bak .netrc.old a/.vault-token.orig
/etc/ssh/ssh_host_rsa_key .gnupg/x .netrc .npmrc .pypirc .pgpass .git-credentials .aws/config
.kube/config .docker/config.json a/.docker/./config.json .config/gcloud/x .config/gh/hosts.yml
/etc/shadow /etc//shadow /etc/shadow- /etc/sudoers.d/x /proc/1/environ /proc/self/mem
.bash_history .python_history .toolbus/credentials.enc .toolbus/dev-keys.toml .toolbus/records.db
.e* .en? .[e]nv .??v/.env .ss*/x ~/.s*h/* id_* *.pem s*.key /e*/sh* /etc/shado? .docker/conf*
vault vault/a safe.sqlite a/b/safe.sqlite my/notes/x
""".split()
SETTINGS = """
.gitconfig .gitmodules .bashrc .profile .zshrc .git .git/config a/.git/hooks/x .GIT/x .vscode/x
.idea/x /etc/hosts /etc/cron.d/x /var/spool/cron/x ~/.config/autostart/x .config/systemd/user/x
/usr/bin/x authorized_keys .claude/x .toolbus/mcp.json policy.toml /dev/sda .bashr* .gi?/x
""".split()
PLAIN = """
a.txt Makefile .gitignore .github/x id_rsa.pub x.crt x.cer environment env venv/x keys/x
etc/shadow proc/1/environ src/.environ x.pem.txt .sshx .config/x /dev/null /dev/urandom
* s*.py src/* .* *.toml [a-z]* package.json /usr/src/app/x /opt/app/x notes/x a.sqlite
""".split()


@pytest.fixture(scope="module")
def sensitive() -> SensitivePaths:
    return SensitivePaths(
        additional_files=["safe.sqlite"], additional_directories=["vault/", "my/notes"]
    )


def test_additional_files_are_named_as_people_write_paths(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setenv("HOME", str(tmp_path / "real"))
    for entry in ("./vault/", "vault//x", "~/vault", f"{tmp_path}/link/vault"):
        sensitive = SensitivePaths(additional_directories=[entry])
        assert sensitive.reason(str(tmp_path.resolve() / "real/vault/x"), writes=False), entry


def test_what_holds_secrets_counts_also_where_it_is_read(sensitive: SensitivePaths) -> None:
    assert [path for path in SECRETS if not sensitive.reason(path, writes=False)] == []
    assert [path for path in SECRETS if not sensitive.reason(path, writes=True)] == []


def test_settings_count_where_they_are_written(sensitive: SensitivePaths) -> None:
    assert [path for path in SETTINGS if not sensitive.reason(path, writes=True)] == []
    assert [path for path in SETTINGS if sensitive.reason(path, writes=False)] == []


def test_other_files_do_not_count(sensitive: SensitivePaths) -> None:
    assert [path for path in PLAIN if sensitive.reason(path, writes=True)] == []


def test_the_files_of_toolbus_count_wherever_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path))
    sensitive = SensitivePaths()
    assert sensitive.reason(f"{tmp_path}/contexts.toml", writes=False)
    assert sensitive.reason(f"{tmp_path}/mcp.json", writes=True)
    assert not sensitive.reason(f"{tmp_path}/mcp.json", writes=False)
    assert sensitive.reason("/a/.toolbus/contexts.toml", writes=False)


def test_a_pattern_that_takes_too_long_to_judge_counts(sensitive: SensitivePaths) -> None:
    for text in ("*" * 4_000, "*/" * 2_000, "[" * 4_000, "a[" * 2_000 + "/.env*"):
        assert sensitive.reason(text, writes=False)
    assert not sensitive.reason("a/" * 100_000, writes=False)


def test_the_last_name_alone_tells_what_is_no_secret() -> None:
    paths = SensitivePaths(["notes/*key?.txt"], ["vault/"])
    entries = [entry for entries in tables.SECRETS.values() for entry in entries.split()]
    for entry in (*entries, "notes/*key?.txt", "vault"):
        for filling in ("x", "ab"):
            name = entry.replace("*", filling).replace("?", "1")
            path = name if name.startswith("/") else f"/root/{name}"
            assert paths.reason(path, writes=False), path
            last_name = name.rpartition("/")[2]
            for spelling in (last_name, last_name.upper(), f"\u200b{last_name}"):
                assert paths.may_end_secret(spelling.encode()), spelling
    assert SensitivePaths(["*.bak", "notes.old"]).may_end_secret(b"notes.old")
    assert SensitivePaths(["*.bak", "notes.old"]).may_end_secret(b"pay.bak")
    for last_name in ("app.py", "config.py", "environment", "key", "notes.txt", ".github"):
        assert not paths.may_end_secret(last_name.encode()), last_name
