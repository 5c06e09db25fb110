"""Package managers, tools of languages, and what they run.

Many of them run code of the folder that they start in, even to show their version: yarn the file
that `.yarnrc.yml` names, cargo and rustc the toolchain of `rust-toolchain.toml`, uv the Python of
`.venv`, and go loads the version that `go.mod` names. Those are asked about whatever their words
are. npm writes a log for each command, to the folder that `.npmrc` names. A file in a program's own
cache does not count as a change.

Source: `--help` of npm 11.19 and pip 23.2; the manuals of npm, yarn 4, rustup, go 1.26, uv and
poetry; conda 24; the manual pages of apt 2.6, dpkg 1.21 and rpm 4.18; Homebrew 4; Terraform 1.11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from toolbus_toolkits.shell.commands.table import (
    SETTINGS,
    Arguments,
    Command,
    Effect,
    asking,
    by_name,
    by_title,
    command_of,
    read_arguments,
    renamed,
    starts,
    subcommand_effect,
    takes_words,
    with_subcommands,
)
from toolbus_toolkits.shell.commands.wrappers import run_text, tails
from toolbus_toolkits.shell.reading import SimpleCommand

__all__ = ["ROWS", "SPECIAL"]

_ASKS_REGISTRY = "it asks the registry that a file of the folder may name"
_RUNS_SCRIPTS = "it runs a script that package.json of the folder names"
_INSTALLS = "it installs packages, and runs their scripts"
_WRITES_LOGS = "it writes logs and asks the registry, both where `.npmrc` of the folder says"
_NPM_WHYS = {
    "npm": _WRITES_LOGS,
    "npm ls, npm list, npm why, npm explain, npm root": _WRITES_LOGS,
    "npm install, npm i, npm ci, npm add, npm update": _INSTALLS,
    "npm rebuild, npm init, npm create": "it runs scripts of packages",
    "npm run, npm run-script, npm test, npm t, npm start": _RUNS_SCRIPTS,
    "npm view, npm info, npm show, npm outdated": _ASKS_REGISTRY,
    "npm audit, npm search, npm ping": _ASKS_REGISTRY,
    "npm uninstall, npm remove, npm rm, npm prune": "it removes packages",
    "npm config list": "it may show tokens",
    "npm config get": "it may show tokens",
    "npm publish": "it publishes the folder for everybody",
    "npm version": "it changes the version, and commits",
    "npm cache": "it changes the cache",
    "npm login": "it stores a token",
}


# Names are also cut: `npm inst`.
_NPM_NAMES = {
    "install": "i add in ins isnt isnta isntal isntall ci ic clean-install install-clean",
    "run": "run-script rum urn",
    "uninstall": "un unlink remove rm r",
    "publish": "",
    "test": "t tst",
    "update": "up upgrade udpate",
}


def _npm(command: SimpleCommand) -> Effect:
    effect = _npm_by_words(command)
    name = command.value(1) or ""
    for full, others in _NPM_NAMES.items():
        if name != full and (name in others.split() or (len(name) > 2 and full.startswith(name))):
            return replace(effect, same=renamed(command, 2, f"npm {full}"))
    return effect


def _npm_by_words(command: SimpleCommand) -> Effect:
    values = [word.value for word in command.words[1:3]]
    if values[:1] in (["exec"], ["x"]):
        return _run(_NPX, command, 2)
    first = command.value(1) or ""
    # Names of commands may be cut: `npm conf set`.
    is_config = first in ("c", "set") or (len(first) > 2 and "config".startswith(first))
    if is_config and (first == "set" or values[1:] not in (["list"], ["ls"], ["get"])):
        return _changes_settings(first)
    if values in (["--version"], ["-v"]) and not command.takes_more:
        return Effect(read_only=True, reads=())
    effect = _NPM_EFFECT(command)
    # Options alone show a help, and write a log of that.
    return effect if effect.runs or effect.why else Effect(why=_WRITES_LOGS)


def _changes_settings(name: str) -> Effect:
    return Effect(why=SETTINGS, immune=f"`{name}`: {SETTINGS}")


_NPM_TOP = Command(
    "npm",
    "-s --silent -q --quiet -d --verbose --json -l --long",
    optional="--loglevel",
    permutes=False,
)
_NPM_EFFECT = with_subcommands(_NPM_TOP, (), _NPM_WHYS)

# With it pip leaves out the variable of the shell that keeps `pip list` from this.
_CHECKS_ITSELF = "lets pip ask an index about itself, and run the `rustc` that the folder may name"
_PIP_TOP = Command(
    "pip",
    "-h --help -V --version -q --quiet -v --verbose --no-color --disable-pip-version-check"
    " --no-input",
    asks={
        "--isolated": _CHECKS_ITSELF,
        "--log": "writes a file",
        "--python": "runs a program",
        "--debug --proxy --trusted-host --cert --client-cert --cache-dir": "is not known to read",
    },
    permutes=False,
)
_PIP_OPTIONS = "-h --help -q --quiet -v --verbose --no-color --disable-pip-version-check --no-input"
_PIP_LIST = takes_words(
    "pip list",
    f"{_PIP_OPTIONS} -e --editable -l --local --user --pre --not-required"
    " --exclude-editable --include-editable",
    valued="--format --exclude",
    files="--path",
    asks={
        "--isolated": _CHECKS_ITSELF,
        "--log": "writes a file",
        "--python": "runs a program",
        "-o --outdated -u --uptodate -i --index-url --extra-index-url": "asks an index",
    },
)
_PIP_ROWS = (
    _PIP_LIST,
    replace(_PIP_LIST, name="pip show", flags=f"{_PIP_OPTIONS} -f --files", valued="", files=""),
    replace(_PIP_LIST, name="pip check", flags=_PIP_OPTIONS, valued="", files=""),
    replace(_PIP_LIST, name="pip inspect", flags=f"{_PIP_OPTIONS} --local --user", valued=""),
)
_PIP_WHYS = {
    "pip install": "it installs packages, and runs their build scripts",
    "pip uninstall": "it removes packages",
    "pip download": "it loads packages, and runs their build scripts",
    "pip wheel": "it builds packages, and runs their build scripts",
    "pip freeze": "it runs git, hg and others in the folders of packages",
    "pip cache": "it changes the cache",
    "pip index": "it asks an index",
}


def _pip(command: SimpleCommand) -> Effect:
    values = [word.value for word in command.words[1:]]
    if "config" in values and any(value in (None, "set", "unset", "edit") for value in values):
        return _changes_settings("pip config")
    effect = _PIP_EFFECT(command)
    if command.words[0].value == "pip":
        return effect
    return replace(effect, same=renamed(command, 1, "pip"))


_PIP_EFFECT = with_subcommands(_PIP_TOP, _PIP_ROWS, _PIP_WHYS)

# Programs that run others with their own words: where their options are not understood, each word
# may begin the command.
_NPX = starts(
    "npx",
    "-y --yes --no -q --quiet",
    valued="-p --package -w --workspace",
    asks={"-c --call": "runs a text"},
)
_UV_RUN = starts(
    "uv run",
    "--frozen --locked --no-sync --isolated --no-project --offline --all-extras --no-dev --dev -q"
    " --quiet -v --verbose --exact --active --refresh",
    valued="--with --extra --group --only-group --python -p --package --project --directory"
    " --env-file --with-requirements --with-editable --no-group --index --config-file",
)
_RUNNERS = by_name(
    _NPX,
    replace(_NPX, name="bunx"),
    _UV_RUN,
    replace(_UV_RUN, name="uvx", valued="--with --from --python -p --index"),
    replace(_UV_RUN, name="uv tool run", valued="--with --from --python -p"),
    starts("poetry run", valued="-C --directory -P --project"),
    starts("pipenv run, pdm run, hatch run, rye run, bundle exec, pnpm exec, yarn exec"),
    starts("pipx run", valued="--spec --python"),
    starts("pnpm dlx", valued="--package"),
    starts("yarn dlx", valued="-p --package"),
    starts("conda run", valued="-n --name -p --prefix --cwd"),
    starts("dotenv run", valued="-f --file"),
)
_NO_RUNNER = by_title(
    {
        "uv, poetry, pipenv, pdm": "it runs the Python of the folder, or changes packages",
        "hatch, rye": "it runs scripts of the project",
        "pipx": "it installs or runs packages",
        "bundle": "it runs the Gemfile of the folder",
        "pnpm": "it may load and run the version of pnpm that package.json names",
        "yarn": "it runs the file that `.yarnrc.yml` of the folder names, and scripts of packages",
        "conda": "it changes packages",
        "dotenv": "it reads secrets",
    }
)
_CONDA_ROWS = (
    takes_words(
        "conda list",
        "-f --full-name -c --canonical --json -q --quiet --explicit --export",
        valued="-n --name",
    ),
    takes_words("conda env list", "--json -q --quiet -v --verbose"),
)


def _run(row: Command, command: SimpleCommand, start: int) -> Effect:
    """Run the words behind the options of a program; `npx -c TEXT` runs a text."""
    arguments = read_arguments(row, command, start)
    why = f"`{row.name}` runs a command in an environment of its own, and may load packages"
    if arguments.fault:
        runs = list(tails(command, start))
        for word in command.words[start:]:
            if word.value is not None and " " in word.value:
                runs.extend(run_text(word.value.partition("=")[2] or word.value, word.source)[0])
        return Effect(why=why, runs=tuple(runs))
    # With nothing behind it, npx starts a shell that reads.
    words = command.words[arguments.first_operand :]
    return Effect(why=why, runs=(command_of(command, words),) if words else ())


def _runner(command: SimpleCommand) -> Effect:
    name = command.base_name
    title = name
    if title in _RUNNERS:
        return _run(_RUNNERS[title], command, 1)
    values = [word.value for word in command.words]
    if len(values) == 2 and values[1] in ("--version", "-V") and name in _SHOWS_VERSION:
        return Effect(read_only=True, reads=())
    if "config" in values[1:3] and not {"list", "get", "show"} & set(values):
        return _changes_settings(f"{name} config")
    for position, word in enumerate(command.words[1:3], 2):
        title = f"{title} {word.value}"
        if title in _RUNNERS:
            return _run(_RUNNERS[title], command, position)
    # Options may stand before `run`; then what it runs may begin anywhere behind it.
    runners = {"run", "exec", "dlx", None}
    if name == "dotenv":  # `dotenv -e .env -- npm test`
        runners.add("--")
    begins = [i for i, value in enumerate(values) if i > 0 and value in runners]
    runs = tails(command, begins[0] + 1) if begins else ()
    if name == "conda" and not runs:
        return subcommand_effect(command, name, by_name(*_CONDA_ROWS), _NO_RUNNER)
    return Effect(why=_NO_RUNNER[name], runs=runs)


_SHOWS_VERSION = frozenset(("uv", "uvx", "pipx", "conda"))
"""Those that read no file of the folder to show their version."""


def _go(command: SimpleCommand) -> Effect:
    if any(word.value in ("-w", "-u", "--w", "--u") for word in command.words[1:]):
        return _changes_settings("go env")
    return Effect(why="it may load and run the version of go that go.mod names")


def _rpm(arguments: Arguments) -> Effect:
    if not arguments.has("-q --query"):
        return Effect(why="it installs or removes packages")
    return Effect(read_only=True, reads=arguments.paths())


_APT_LIST = takes_words(
    "apt list", "--installed --upgradable --upgradeable -a --all-versions -v --verbose -q --quiet"
)
_APT_TOP = Command("apt", "-v --version -h --help", permutes=False)
_APT_ROWS = (
    _APT_LIST,
    replace(
        _APT_LIST,
        name="apt show, apt search, apt policy, apt depends, apt rdepends",
        flags="-a --all-versions -n --names-only -f --full",
    ),
)
_APT_CACHE_ROWS = tuple(
    replace(_APT_ROWS[1], name=f"apt-cache {name}")
    for name in (
        "show search policy depends rdepends madison pkgnames stats showpkg dump unmet showsrc"
    ).split()
)
_PACKAGES = "it installs or removes packages"

_BREW_LIST = takes_words(
    "brew list",
    "--formula --formulae --cask --casks --versions -1 -l -r -t --full-name --multiple --pinned",
)
_TERRAFORM_VERSION = takes_words("terraform version", "-json", single_dash=True, at_most=0)

ROWS: tuple[Command, ...] = (
    *(*_PIP_ROWS, *_CONDA_ROWS, *_APT_ROWS, *_APT_CACHE_ROWS, _BREW_LIST, _TERRAFORM_VERSION),
    takes_words(
        "dpkg",
        "-l --list -s --status -L --listfiles -S --search -p --print-avail --get-selections"
        " --version --print-architecture --print-foreign-architectures -C --audit"
        " --compare-versions -V --verify --help",
    ),
    takes_words(
        "dpkg-query",
        "-l --list -s --status -L --listfiles -S --search -p --print-avail -W --show --no-pager"
        " --version --help",
        valued="-f --showformat",
    ),
    takes_words(
        "rpm",
        "-q --query -a --all -i --info -l --list -c --configfiles -d --docfiles -R --requires"
        " --provides --changelog -s --state --version",
        effect=_rpm,
    ),
)

_TOOLCHAIN = "it may run the toolchain that a file of the folder names, and code of the project"
_COMPILES = "it writes files, and may run code of the project"
_BREW_TOP = Command("brew", "--version -v", permutes=False)
_TERRAFORM_TOP = Command(
    "terraform", "-version -v --version -help", single_dash=True, permutes=False
)
_TERRAFORM_WHYS = {
    "terraform": "it runs providers of the project",
    "terraform apply": "it changes what the project describes",
    "terraform destroy": "it deletes what the project describes",
    "terraform init": "it loads programs that the project names",
    "terraform fmt": "it changes files",
}


SPECIAL: Mapping[str, Callable[[SimpleCommand], Effect]] = {
    "npm": _npm,
    "pip, pip3": _pip,
    **dict.fromkeys((name for name in {**_RUNNERS, **_NO_RUNNER} if " " not in name), _runner),
    "cargo, rustc, rustup, rustfmt, clippy-driver": asking(_TOOLCHAIN),
    "go, gofmt": _go,
    "gcc, g++, cc, c++, clang, clang++": asking(
        _COMPILES, unless="--version -dumpversion -dumpmachine"
    ),
    "java": asking("it runs a program", unless="-version --version"),
    "javac": asking(_COMPILES, unless="-version --version"),
    "cmake, ctest, ninja, meson": asking(_COMPILES, unless="--version"),
    "make, gmake": asking("it runs what the Makefile says, also with -n", unless="--version -v"),
    "just, task, rake": asking("it runs what a file of the folder says"),
    "pytest, tox, nox, mvn, gradle, jest, vitest, mocha": asking("it runs code of the project"),
    "eslint, prettier, tsc, webpack, vite, next": asking(
        "it runs what the configuration of the project names"
    ),
    "mypy, ruff, black, isort, flake8, pylint": asking(_COMPILES),
    "ansible, ansible-playbook, helm": asking("it changes other machines"),
    "apt": with_subcommands(_APT_TOP, _APT_ROWS, {"apt": _PACKAGES}),
    "apt-cache": with_subcommands(
        replace(_APT_TOP, name="apt-cache"), _APT_CACHE_ROWS, {"apt-cache": _PACKAGES}
    ),
    "apt-get, aptitude, dnf, yum, pacman, apk, snap, zypper": asking(_PACKAGES),
    "brew": with_subcommands(_BREW_TOP, (_BREW_LIST,), {"brew": _PACKAGES}),
    "terraform": with_subcommands(_TERRAFORM_TOP, (_TERRAFORM_VERSION,), _TERRAFORM_WHYS),
}
