"""Options that run a program or lead elsewhere: what they name, for the rules of a person.

A deny rule for `rm` sees the `rm` of `rsync -e rm`, and `git fetch:*` allows no `git fetch
--upload-pack=./x`. Here stand the options of commands that are asked about whatever their words
are. Of a command with a row they are those of `Command.asks` of which the clause begins with `runs`
(a program), `names` or `asks` (another place).

Source: the manual pages and `--help` of the programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from toolbus_toolkits.shell.commands.table import (
    Command,
    may_be_several,
    read_arguments,
    unknown_command,
)
from toolbus_toolkits.shell.reading import SimpleCommand, Word

__all__ = ["ProgramOption", "may_get_program_options", "program_options"]

_UPLOAD = "--upload-pack --exec ext::"
# An entry that begins with `-` is an option, any other one begins a word (`SHELL=`), and one behind
# `*` stands anywhere in a word. Options of `git` and `docker` stand before the sub-command.
_PROGRAMS: Mapping[str, str] = {
    "git": "-c --config-env --exec-path",
    "git clone": f"-u -c --config --template {_UPLOAD}",
    "git fetch, git pull, git ls-remote, git fetch-pack": _UPLOAD,
    "git push, git send-pack": "--receive-pack --exec ext::",
    "git archive": "--exec --remote",
    "git remote, git submodule": "ext::",
    "git init": "--template",
    "git rebase": "-x --exec",
    "git difftool": "-x --extcmd",
    "git instaweb": "-d --httpd -b --browser",
    "git web--browse": "-b --browser -t --tool",
    "git send-email": "--to-cmd --cc-cmd --header-cmd --sendmail-cmd --smtp-server",
    "git daemon": "--access-hook",
    "git filter-branch": "--setup --env-filter --tree-filter --index-filter --parent-filter"
    " --msg-filter --commit-filter --tag-name-filter",
    "hg": "--config --ssh --remotecmd --tool",
    "svn": "--diff-cmd --diff3-cmd --editor-cmd --config-option",
    "make, gmake": "--eval -E SHELL= .SHELLFLAGS= MAKE= MAKEFLAGS= GNUMAKEFLAGS= *$( *${ *!="
    " CC= CXX= CPP= LD= AR= AS= FC= PYTHON=",
    "gcc, g++, cc, c++, clang, clang++": "-wrapper -fplugin -specs --specs -B",
    "go": "-exec -toolexec -vettool *-extld",
    "cargo": "--config",
    "rustc": "*linker=",
    "cmake": "-E -P *COMPILER= *LAUNCHER= *CMAKE_MAKE_PROGRAM=",
    "java": "*OnError= *OnOutOfMemoryError=",
    "just": "--shell --shell-arg",
    "systemd-run": "-p --property",
    "start-stop-daemon": "-x --exec -a --startas",
    "ctest": "-S -SP --build-and-test",
    "bazel, bazelisk": "--run_under",
    "npm, npx, pnpm, pnpx, yarn": "--script-shell --shell --git --editor --viewer --browser"
    " --node-options --call",
    "bun": "-r --preload",
    "pip, pip3": "--config-settings -C --global-option --install-option",
    "rpm": "-E --eval --pipe -D --define",
    "dpkg": "--pre-invoke --post-invoke --status-logger",
    "apt, apt-get, apt-cache, aptitude": "-o --option",
    "dnf, yum": "--setopt",
    "helm": "--post-renderer",
    "ansible": "-a --args",
    "docker run, docker compose, podman run": "--entrypoint",
    "nc, ncat, netcat": "-e -c --exec --sh-exec --lua-exec",
    "socat": "*EXEC: *SYSTEM: *SHELL:",
    "rsync": "-e --rsh --rsync-path",
    "ssh": "-o",
    "scp, sftp": "-o -S -D -s",
    "wget": "--use-askpass -e --execute",
    "aria2c": "--on-download-complete --on-download-start --on-download-stop --on-download-error"
    " --on-download-pause --on-bt-download-complete",
    "tcpdump": "-z",
    "gpg, gpg2": "--photo-viewer --agent-program --pinentry-program --keyserver-options"
    " --gpgconf-program --dirmngr-program",
    "zip": "-TT --unzip-command",
    "cpio": "--rsh-command",
    "split": "--filter",
    "install": "--strip-program",
    "sdiff": "--diff-program",
    "less": "+ -p --pattern -k --lesskey-file --lesskey-src --lesskey-content",
    "more": "+",
    "vim, vi, nvim, view, ex, gvim, vimdiff": "-c --cmd + -S",
    "emacs, emacsclient": "--eval --execute -f --funcall",
    "ed, red": "!",
    "gdb, lldb": "-ex -iex --eval-command --init-eval-command --exec -o --one-line",
    "strace, ltrace": "-o --output",
    "script": "-c --command",
    "flock, su, runuser": "-c --command -s --shell",
    "fzf": "--preview --bind",
    "bat, batcat, ack": "--pager",
    "hyperfine": "-p --prepare --setup --cleanup --conclude -S --shell",
    "mysql, mariadb": "--pager",
    "xterm": "-e",
}
_PLACES: Mapping[str, str] = {
    "git": "-C --git-dir --work-tree --namespace --super-prefix --attr-source",
    "git clone": "--separate-git-dir --bundle-uri --reference",
    "git init": "--separate-git-dir",
    "git archive": "-o --output",
    "git format-patch": "-o --output-directory",
    "git apply": "--unsafe-paths --directory",
    "git am": "--directory",
    "hg": "-R --repository --cwd",
    "make, gmake": "-C --directory -f --file --makefile -I --include-dir MAKEFILES= VPATH=",
    "go": "-C -modfile -overlay -pkgdir -workfile -compiler",
    "cargo": "-C -Z --manifest-path --root --target-dir --registry --index",
    "ninja": "-C -f",
    "meson": "-C",
    "ctest": "--test-dir",
    "mvn": "-f --file -s --settings --global-settings -t --toolchains",
    "gradle, gradlew": "-p --project-dir -I --init-script -b --build-file -c --settings-file -g"
    " --gradle-user-home --include-build",
    "npm, npx, pnpm, pnpx, yarn": "--prefix -C --dir --cwd -g --global --location --userconfig"
    " --globalconfig --cache --registry --modules-folder --use-yarnrc",
    "conda, mamba": "-p --prefix -c --channel",
    "composer": "-d --working-dir",
    "bundle": "--gemfile",
    "gem": "-i --install-dir -s --source",
    "pdm": "-p --project -c --config -g --global",
    "bun": "--cwd --config",
    "pip, pip3": "-t --target --prefix --root --src -i --index-url --extra-index-url -f"
    " --find-links",
    "uv, uvx": "--directory --project --config-file -p --python --index --index-url"
    " --extra-index-url --default-index -f --find-links --target --prefix",
    "poetry": "-C --directory -P --project",
    "pytest": "-c --config-file -p --rootdir --confcutdir -o --override-ini --basetemp",
    "tox, nox, just, task, rake": "-c -f -d --conf --noxfile --justfile --working-directory --dir"
    " --taskfile --rakefile",
    "eslint, jest, vitest, webpack, vite": "-c --config --rulesdir --plugin -r --root --rootDir"
    " --resolve-plugins-relative-to",
    "prettier, mocha": "--config --plugin -r --require --import --loader",
    "mypy, ruff, black, isort, flake8, pylint": "--config-file --config --rcfile"
    " --python-executable --settings-path --load-plugins",
    "apt, apt-get, apt-cache, aptitude": "-c --config-file",
    "dpkg": "--root --instdir --admindir",
    "rpm": "--root --dbpath --rcfile --macros",
    "dnf, yum": "-c --config --installroot",
    "pacman": "-r --root --config -b --dbpath --hookdir --sysroot",
    "docker, podman, nerdctl": "-H --host -c --context --config --url --connection -l --log-level",
    "docker": "--tlscacert --tlscert --tlskey",
    "podman": "--root --runroot --identity --ssh --tmpdir --module --conmon --runtime --hooks-dir"
    " --storage-driver --storage-opt --cgroup-manager --events-backend --network-cmd-path",
    "docker compose, podman compose": "--file --project-directory --env-file",
    "kubectl, helm": "--kubeconfig --context --kube-context --cluster -s --server",
    "gh, glab": "-R --repo",
    "terraform": "-chdir",
    "aws": "--endpoint-url --profile",
    "ansible, ansible-playbook": "-i --inventory -M --module-path",
}
_LEADING = frozenset("git docker podman nerdctl".split())
"""Names of which the options stand before the sub-command: `git commit -C` is another `-C`."""
_ONE_DASH = frozenset("go gcc g++ cc c++ clang clang++ terraform gdb".split())
"""Names of which a word with one `-` is one option, never several letters."""
_WITH_TEXTS = frozenset(("git", "gh", "glab"))
_TEXT_OPTIONS = frozenset("--message --title --body --notes --description".split())
"""Options whose value is a text, where a program of `_WITH_TEXTS` has them."""
_ENDS = re.compile(r"(?i:[;|&!:=(){},\"'`\\%\n]|\b(?:shell|[a-z]+command)\b)")
"""What ends a command in the value of an option, whatever reads it: a shell, vim, make, ssh."""


def _by_title(table: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for titles, entries in table.items():
        for title in titles.split(", "):
            found[title] = (*found.get(title, ()), *entries.split())
    return found


_RUNS_BY_TITLE = _by_title(_PROGRAMS)
_LEADS_BY_TITLE = _by_title(_PLACES)


class ProgramOption(NamedTuple):
    """An option of a command that runs a program, or leads elsewhere."""

    name: str
    """As it is described: `--upload-pack`, `SHELL=`."""
    word: Word
    """The word of the command that it stands in."""
    programs: tuple[SimpleCommand, ...]
    """What it may run."""


class _Described(NamedTuple):
    """The entries of a title, and the words in which they may stand."""

    runs: tuple[str, ...]
    leads: tuple[str, ...]
    words: tuple[Word, ...]
    takes_more: bool


def program_options(command: SimpleCommand, rows: Mapping[str, Command]) -> Iterator[ProgramOption]:
    """Yield the options of a command that run a program or lead elsewhere, and sometimes others.

    The value of another option counts as an option too, and so does a letter among others, since
    not all options of a command are known here.
    """
    letters = _base_name(command) not in _ONE_DASH
    for described in _described(command, rows):
        for word, following in zip(described.words, (*command.words[2:], None), strict=False):
            for entry in (*described.runs, *described.leads):
                value = _value(entry, word, following, letters=letters)
                if value is None:
                    continue
                programs: tuple[SimpleCommand, ...] = ()
                # A variable that is handed on is everyday: `make CC="$CC"`.
                if entry in described.runs and value.value is None and entry[0] == "-":
                    programs = (unknown_command(value.source),)
                elif entry in described.runs:
                    texts = [text.split() for text in _ENDS.split(value.value or "")]
                    programs = tuple(
                        SimpleCommand(tuple(Word(part, part) for part in text))
                        for text in texts
                        if text
                    )
                yield ProgramOption(entry.lstrip("*"), word, programs)


def may_get_program_options(command: SimpleCommand, rows: Mapping[str, Command]) -> bool:
    """Whether a word that is known only when the line runs may become such an option."""
    for described in _described(command, rows):
        if described.takes_more:
            return True
        for before, word in pairwise((command.words[0], *described.words)):
            if word.value is not None and not word.is_pattern:
                continue
            # These programs refuse an option that they do not know: behind it stands its value.
            is_text = before.value in _TEXT_OPTIONS and not may_be_several(word)
            if is_text and _base_name(command) in _WITH_TEXTS:
                continue
            known = re.split(r"[*?\[]", word.known)[0].lower()
            for entry in (*described.runs, *described.leads):
                if (
                    entry[0] == "*"
                    or entry.lower().startswith(known)
                    or known[:1] == entry[:1] == "-"
                ):
                    return True
    return False


def _base_name(command: SimpleCommand) -> str:
    return command.words[0].known.rpartition("/")[2] if command.words else ""


def _described(command: SimpleCommand, rows: Mapping[str, Command]) -> Iterator[_Described]:
    name = _base_name(command)
    words = command.words[1:]
    # The sub-command may stand behind options: `npm -s test`.
    for title in dict.fromkeys((name, *(f"{name} {word.known}" for word in words))):
        runs = _RUNS_BY_TITLE.get(title, ())
        leads = _LEADS_BY_TITLE.get(title, ())
        if row := rows.get(title):
            runs += _of_row(row, "runs")
            leads += _of_row(row, "names", "asks")
        end = len(words)
        if title in _LEADING:
            end = _end_of_options(words, (*runs, *leads))
        elif row and title == name and not row.permutes and title not in _RUNS_BY_TITLE:
            # The `-i` of `sudo sed -i s/a/b/` is none of sudo.
            end = read_arguments(row, command).first_operand - 1
        takes_more = command.takes_more and end == len(words)
        if runs or leads:
            yield _Described(runs, leads, words[:end], takes_more)


def _of_row(row: Command, *clauses: str) -> tuple[str, ...]:
    return tuple(name for name, clause in row.clauses.items() if clause.startswith(clauses))


def _end_of_options(words: Sequence[Word], valued: Sequence[str]) -> int:
    """Return where the sub-command stands: the first word that is no option and no value."""
    is_value = False
    for at, word in enumerate(words):
        if not is_value and word.value is not None and not word.value.startswith("-"):
            return at
        is_value = not is_value and word.value in valued
    return len(words)


@cache
def _mark(entry: str) -> re.Pattern[str]:
    start = "" if entry[0] == "*" else r"\A"
    # `make` takes `SHELL:=x` too.
    text = re.escape(entry.lstrip("*")).replace("=", "[:+?!]*=")
    return re.compile(start + text, re.IGNORECASE)


def _value(entry: str, word: Word, following: Word | None, *, letters: bool) -> Word | None:
    """Return the value of an option if a word is that option, else None."""
    text = word.known
    rest: str | None = None
    if entry[0] != "-":
        if found := _mark(entry).search(text):
            rest = text[found.end() :]
    elif text[:1] != "-":
        return None
    elif len(entry) == 2 and text[:2] != "--":
        at = re.split("[^A-Za-z0-9]", text[1:], maxsplit=1)[0].find(entry[1])
        if at == 0 or (at > 0 and letters):
            rest = text[at + 2 :].removeprefix("=")
    else:
        name, _, after = text.partition("=")
        is_cut = name[:2] == entry[:2] == "--" and len(name) > 2 and entry.startswith(name)
        is_among = text.startswith(entry) or (letters and entry[1:] in text)  # `-TTrm`
        if is_cut or name.lstrip("-") == entry.lstrip("-"):
            rest = after
        elif is_among and entry[1] != "-" and text[:2] != "--":
            rest = text.partition(entry[1:])[2]
    if rest is None:
        return None
    if rest or word.value is None:
        return Word(word.source, word.value and rest)
    return following or Word("", "")
