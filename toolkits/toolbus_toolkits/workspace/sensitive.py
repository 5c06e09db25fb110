"""Files that hold secrets, and files that change what other programs do.

The tables below are data: each entry is a name or the end of a path, with `*` and `?`, both never
across a `/`. An entry matches wherever its names stand in a path, one after the other, so that it
covers all that is below a folder of that name too. One that begins with `/` matches from there.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

from toolbus.settings import home_of
from toolbus_toolkits.workspace.roots import PATH_MAX, Roots, is_same_or_below

__all__ = ["HARMLESS_DEVICES", "ProgramPaths", "SensitivePaths", "has_wildcard"]

_OF_TOOLBUS = "holds keys and records of toolbus"
SECRETS: Mapping[str, str] = {
    # Variables of a service or a folder: by custom passwords of databases and keys of models.
    # `.env.example` is listed with them: what it holds, only a look at it tells.
    "may hold passwords and keys of a service": (
        ".env .env.* .env~ .env-* .env_* .envrc *.env .flaskenv .dev.vars"
    ),
    # The names that ssh-keygen, OpenSSL, Java and password managers give to private keys. Public
    # keys (`*.pub`) and certificates (`*.crt`, `*.cer`) are no secrets.
    "is by its name a private key": (
        "id_rsa id_dsa id_ecdsa id_ecdsa_sk id_ed25519 id_ed25519_sk *.pem *.key *.p8 *.p12 *.pfx"
        " *.pk8 *.ppk *.jks *.keystore *.kdb *.kdbx *.agekey *.key.asc ssh_host_*_key"
    ),
    "holds keys of its user": ".ssh .gnupg .pki .password-store .local/share/keyrings",
    # Files of clients, each with a password or a token in plain text.
    "holds passwords or tokens": (
        ".netrc _netrc .authinfo .authinfo.gpg .pgpass .my.cnf .mylogin.cnf .git-credentials"
        " .config/git/credentials .config/gh .config/hub .config/glab-cli .npmrc .yarnrc.yml"
        " .pypirc .gem/credentials .cargo/credentials .cargo/credentials.toml .composer/auth.json"
        " .m2/settings.xml .gradle/gradle.properties .nuget/nuget.config .aws .azure .config/gcloud"
        " .boto .s3cfg .oci .config/doctl .config/rclone .kube .docker/config.json"
        " .config/containers/auth.json .dockercfg .terraform.d .terraformrc .vault-token .config/op"
        " .htpasswd .smbcredentials .fetchmailrc .msmtprc .mutt .claude.json"
        " .claude/.credentials.json .codex/auth.json .huggingface/token .cache/huggingface/token"
        " .mozilla .thunderbird .config/google-chrome .config/chromium"
    ),
    # What was typed before, often with a password among it.
    "holds what was typed before": (
        ".bash_history .zsh_history .history .sh_history .local/share/fish .python_history"
        " .node_repl_history .psql_history .mysql_history .sqlite_history .rediscli_history"
        " .lesshst .viminfo"
    ),
    "holds passwords of this machine": (
        "/etc/shadow* /etc/gshadow* /etc/sudoers* /etc/security/opasswd /etc/ssl/private"
        " /etc/krb5.keytab /etc/NetworkManager/system-connections /var/run/secrets /run/secrets"
        " /var/lib/sss"
    ),
    # The variables and the memory of any process of this user.
    "holds the memory of programs": (
        "/proc/*/environ /proc/*/mem /proc/*/task/*/environ /proc/*/task/*/mem /proc/kcore /dev/mem"
        " /dev/kmem"
    ),
    # What the SDK and its toolkits write to TOOLBUS_HOME; its tokens let join rooms as this user.
    _OF_TOOLBUS: (
        ".toolbus/dev-keys.toml .toolbus/credentials.enc .toolbus/contexts.toml"
        " .toolbus/config.toml .toolbus/records.db* .toolbus/*history*"
    ),
}
"""Files that a person decides about when any caller reads them, by the reason."""

SETTINGS: Mapping[str, str] = {
    "is run by shells at their start": (
        ".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv"
        " .zprofile .zlogin .zlogout .kshrc .cshrc .tcshrc .login .config/fish .inputrc .xprofile"
        " .xinitrc .xsessionrc"
    ),
    # Git runs what its settings and hooks name.
    "says what git does": ".git .gitconfig .gitmodules .config/git .githooks .husky",
    # Editors run tasks of a folder that is opened; interpreters and clients read these unasked.
    # What runs only when somebody asks for it, as a Makefile, is a file of a project like others.
    "says what an editor or a tool runs": (
        ".vscode .idea .devcontainer .vimrc .vim .config/nvim .emacs .emacs.d .nanorc .claude"
        " .cursor .mcp.json sitecustomize.py usercustomize.py .pythonrc .pdbrc .gdbinit .lldbinit"
        " .screenrc .tmux.conf .config/direnv .config/pip .pip pip.conf .condarc .gemrc .curlrc"
        " .wgetrc .cargo/config .cargo/config.toml"
    ),
    # Not `/usr`, `/opt` and `/var/lib` as a whole: containers have their working directory there.
    "is part of the system": (
        "/etc /boot /proc /sys /bin /sbin /lib /lib64 /usr/bin /usr/sbin /usr/lib /usr/local/bin"
        " /usr/local/sbin /usr/local/lib /var/spool/cron /var/spool/at .config/autostart"
        " .config/systemd .config/environment.d .local/share/systemd .local/bin .pam_environment"
        " cron.d cron.daily cron.hourly cron.weekly cron.monthly authorized_keys LaunchAgents"
        " LaunchDaemons"
    ),
    "is a disk": (
        "/dev/sd* /dev/hd* /dev/nvme* /dev/vd* /dev/xvd* /dev/mmcblk* /dev/mapper /dev/dm-*"
        " /dev/md* /dev/loop* /dev/disk /dev/block"
    ),
    # With another rule file an agent would allow itself what it wants: hosts read them again.
    "says what toolbus allows and hosts": ".toolbus policy.toml rules.toml",
}
"""Files and folders that a person decides about when they are changed, by the reason."""

HARMLESS_DEVICES = frozenset(
    f"/dev/{name}"
    for name in ("null", "zero", "full", "random", "urandom", "tty", "stdin", "stdout", "stderr")
)
"""Devices that keep nothing: to write to them changes no file, and they hold no secret."""

_MAX_PATTERN_CHARS = 512
"""The longest pattern that is compared with each entry, at each of its names."""
_OF_COPIES = ("~", ".bak", ".old", ".orig", ".save", ".swp")
"""What editors and people put behind the name of a copy: `id_rsa.bak` is a key too."""
_WILDCARDS = frozenset("*?[")
_BRACKETS = re.compile(r"\[[!^]?\]?(?:\[[:.=]\w+[:.=]\]|[^\]/])*\]")
"""A set of characters in a pattern of bash."""


def has_wildcard(text: str) -> bool:
    """Whether a path may be a pattern of bash."""
    return not _WILDCARDS.isdisjoint(text)


class SensitivePaths:
    """Which files and folders a person decides about, whatever the rules allow.

    It compares names and looks at no file. Case counts nothing, as on file systems of macOS, nor do
    characters without a shape, which those ignore.

    Args:
        additional_files: Names or ends of paths of further files with secrets, with `*` and `?`.
        additional_directories: Those of further folders, with all that is below them.
    """

    def __init__(
        self, additional_files: Iterable[str] = (), additional_directories: Iterable[str] = ()
    ) -> None:
        home = home_of(os.environ)
        secrets = {reason: entries.split() for reason, entries in SECRETS.items()}
        names = [entry.partition("/")[2] for entry in secrets[_OF_TOOLBUS]]
        secrets[_OF_TOOLBUS] += (f"{home}/{name}" for name in names)
        given = filter(None, (*additional_files, *additional_directories))
        added = [text for entry in given for text in _spellings(entry)]
        secrets["is kept from agents by the operator"] = added
        settings = {reason: entries.split() for reason, entries in SETTINGS.items()}
        self._secrets = _Entries(secrets)
        ends = _Ends(entry for entries in secrets.values() for entry in entries)
        # Trees have the same names again and again, and so has the next search.
        self.may_end_secret: Callable[[bytes], bool] = lru_cache(maxsize=16_384)(ends.may_match)
        """Whether the last name of a path, as bytes, lets it be that of a file with secrets.

        It takes a fiftieth of the time of `reason`, for trees of many files. What is below a folder
        with secrets counts as one of them whatever its name: this looks at the name alone.
        """
        self._all = _Entries({**secrets, **settings, "says what toolbus hosts": [str(home)]})
        # One line names the same paths several times, and so do the lines of one agent.
        self._reason = lru_cache(maxsize=1024)(self._find)

    def reason(self, path: str, *, writes: bool) -> str:
        """Return why a person decides about a path, to follow its name; empty if no one has to.

        A file has several paths: ask for the path as it was written, and for the resolved one. For
        a pattern of bash (`*`, `?`, `[`) it says whether its own characters lead to such a file, as
        those of `.e*` and `*.pem` do; what `*` and `s*` match, only their expansion says. What
        holds secrets counts also where it is only read.
        """
        return self._reason(path, writes)

    def _find(self, path: str, writes: bool) -> str:
        if path in HARMLESS_DEVICES:
            return ""
        if has_wildcard(path) and len(path) > _MAX_PATTERN_CHARS:
            return "is a pattern that is too long to judge"
        entries = self._all if writes else self._secrets
        plain = _comparable(path[-PATH_MAX:])
        found = entries.reason(plain)
        if not found and plain.endswith(_OF_COPIES):
            found = self._secrets.reason(_without_copy(plain))
        if not found and has_wildcard(path):
            found = entries.reason_of_pattern(path)
        return found


def _spellings(entry: str) -> set[str]:
    """Return an entry as a person may write it, such as `./vault/` or `~/vault`, as in the tables.

    An absolute one is added with its real path too, which is the one that is compared.
    """
    if entry.startswith("~/"):
        entry = os.path.expanduser(entry)
    plain = os.path.normpath(entry)
    return {plain, os.path.realpath(plain)} if plain.startswith("/") else {plain}


class _Entries:
    """A table of entries, compiled: one search for each path, whatever the number of entries."""

    def __init__(self, table: Mapping[str, Iterable[str]]) -> None:
        self._reasons = tuple(table)
        self._samples: list[tuple[tuple[str, ...], str]] = []
        groups = []
        for reason, entries in table.items():
            found = []
            for entry in map(_comparable, entries):
                start = r"\A" if entry.startswith("/") else ""
                found.append(f"{start}/{_regex_of(entry.lstrip('/'))}")
                for filling in ("", "x"):
                    sample = entry.lstrip("/").replace("*", filling)
                    self._samples.append((tuple(sample.split("/")), reason))
            groups.append(f"({'|'.join(found)})" if found else r"(\Z.)")
        # Each entry stands between two `/`, or at the end of the path.
        self._search = re.compile(f"(?:{'|'.join(groups)})(?=/|$)").search

    def reason(self, path: str) -> str:
        # Before the first name of a relative path a `/` is needed too, but none at the start.
        found = self._search(path if path.startswith("/") else f"./{path}")
        return "" if found is None else self._reasons[(found.lastindex or 1) - 1]

    def reason_of_pattern(self, pattern: str) -> str:
        """Return the reason of an entry whose sample a pattern matches, name by name."""
        plain = _BRACKETS.sub("?", _comparable(pattern))
        names = [name for name in plain.split("/") if name not in ("", ".")]
        for sample, reason in self._samples:
            for at in range(len(names) - len(sample) + 1):
                pairs = list(zip(names[at : at + len(sample)], sample, strict=True))
                if any(map(_leads_to, *zip(*pairs, strict=True))) and all(
                    _matches(part, name) for name, part in pairs
                ):
                    return reason
        return ""


class _Ends:
    """The last names of entries, each in the way that is compared fastest."""

    def __init__(self, entries: Iterable[str]) -> None:
        names = {_comparable(entry).rpartition("/")[2] for entry in entries}
        self._whole = frozenset(name for name in names if not {"*", "?"} & set(name))
        starts = []
        ends = []
        others = []
        for name in sorted(names - self._whole):
            if "?" not in name and name.find("*") == len(name) - 1:
                starts.append(name[:-1])
            elif "?" not in name and name.rfind("*") == 0:
                ends.append(name[1:])
            else:
                others.append(_regex_of(name))
        self._starts = tuple(starts)
        self._ends = tuple(ends)
        self._matches_other = re.compile("|".join(others) or r"(?!)").fullmatch

    def may_match(self, data: bytes) -> bool:
        if not data.isascii():  # a character of it may count as a `/`
            return True
        name = data.decode().casefold()
        if name.endswith(_OF_COPIES) and self._matches(_without_copy(name)):
            return True
        return self._matches(name)

    def _matches(self, name: str) -> bool:
        return (
            name in self._whole
            or name.startswith(self._starts)
            or name.endswith(self._ends)
            or self._matches_other(name) is not None
        )


def _leads_to(pattern: str, name: str) -> bool:
    """Whether the characters of a pattern before its first wildcard are those of a name.

    One character may be so by chance, as in `s*.py`; a dot is written on purpose.
    """
    known = re.split("[*?]", pattern, maxsplit=1)[0]
    is_meant = len(known) > 1 or (known == "." and pattern.strip("*?.") != "")
    return is_meant and name.startswith(known)


def _matches(name: str, pattern: str) -> bool:
    # A `.` at the start is not matched by `*` and `?`; what `dotglob` changes, `shopt` is asked for
    return fnmatchcase(name, pattern) and (name[:1] != "." or pattern[0] == ".")


def _without_copy(path: str) -> str:
    """Return the path of what is copied in a file, by what is put behind the name of a copy."""
    for suffix in _OF_COPIES:
        path = path.removesuffix(suffix)
    return path


def _regex_of(entry: str) -> str:
    return re.escape(entry).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")


def _comparable(path: str) -> str:
    """Return a path so that names which a file system may take for one are one text."""
    if not path.isascii():
        shown = unicodedata.normalize("NFKC", path)
        path = "".join(char for char in shown if unicodedata.category(char) != "Cf")
    path = path.casefold()
    return re.sub("/(?:\\.?/)+", "/", path) if "//" in path or "/./" in path else path


class ProgramPaths(SensitivePaths):
    """Files that a person decides about, and the folders of PATH in working directories.

    In a virtual environment of the project, `ls` would be the file that an accepted edit made.
    """

    def __init__(
        self,
        roots: Roots,
        environment: Mapping[str, str],
        additional_files: Iterable[str] = (),
        additional_directories: Iterable[str] = (),
    ) -> None:
        super().__init__(additional_files, additional_directories)
        self._roots = roots
        folders = environment.get("PATH", "").split(os.pathsep)
        both = {
            path
            for folder in folders
            for path in (os.path.normpath(folder), os.path.realpath(folder))
        }
        self._folders = [folder for folder in both if roots.contains(folder)]

    def reason(self, path: str, *, writes: bool) -> str:
        """Return why a person decides about a path, to follow its name; empty if no one has to.

        What has such a folder below it counts too, as it may be made or replaced with all in it;
        but no working directory, into which nearly every command writes.
        """
        if writes and not self._roots.is_root_or_above(path):
            for folder in self._folders:
                if is_same_or_below(path, folder) or is_same_or_below(folder, path):
                    return "is in PATH, where commands are found by their names"
        return super().reason(path, writes=writes)
