"""Command lines that are built from a grammar, to be judged: most of them only read.

The names and the options are those of the descriptions of commands. What is drawn from a list of
`_RISKY` words writes in some place or other, or looks as if it did. Every choice comes from one
`Random`, so that hypothesis and a seed can make it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from toolbus_toolkits.shell.commands import ROWS, SPECIAL
from toolbus_toolkits.shell.commands.table import Command

__all__ = ["BUILTINS", "BuiltLine", "CommandLines", "names_to_try"]

BUILTINS = frozenset({"echo", "printf", "test", "[", "pwd", "cd", "type", "true", "false", ":"})

_FILES = (
    *("a.txt", "b.txt", "README.md", "data.json", "data.csv", "src/main.py", "list.txt"),
    *("./a.txt", "archive.tar", "linked.txt", "link/kept.txt", '"my file.txt"', "commands.txt"),
    *("src", ".", "tests", "link", "src/deep", "missing.txt", "patch.diff", "/proc/1/environ"),
)
_PATTERNS = ("*.txt", "src/*", "src/*.py", "odd/*", "[ab].txt", "?.txt", "*", "{a,b}.txt")
_UNKNOWN = ("$X", '"$X"', "$HOME", '"$PWD"', "$(echo a.txt)", "${X:-a.txt}", "~", "$((1+1))")
_WORDS = ("foo", "apple", "'a b'", "1", "2", "10", "-", "HEAD", "main", "feature", "v1", "x=1")
_VALUES = (
    *("1", "2", "5", "a", ",", "foo", "a.txt", "new.txt", "src", "./run.sh", "always", "auto"),
    *("%h", "never", "full", "HEAD", "main", "json", "utf-8", "1,2", "'%s'", "none", "10"),
)
_RISKY = (
    *("-o", "-o new.txt", "-onew.txt", "--output=new.txt", "--output new.txt", "--outp=new.txt"),
    *("-w", "-i", "-d", "-D", "-m new", "-f", "-u", "-e", "-x", "-c", "-C", "-p", "-s", "-T ."),
    *("--delete", "-delete", "--in-place", "--write", "--fix", "--force", "--exec ./run.sh"),
    *("--compress-program=./run.sh", "--pre ./run.sh", "--ext-diff", "--textconv", "new.txt"),
    *("--to-command=./run.sh", "--checkpoint-action=exec=./run.sh", "--log=new.txt", "-- -o"),
)
_OTHERS = (
    *("touch new.txt", "rm a.txt", "tee new.txt", "mkdir new", "cp a.txt new.txt", "./run.sh"),
    *("git commit -qam x", "git branch new", "sed -i s/a/b/ a.txt", "bash run.sh", "make", "true"),
    *("git add .", "git stash", "git tag new", "tar xf archive.tar", "ln -s a.txt new", "npm test"),
    *("sh -c 'touch new.txt'", "xargs touch < list.txt", 'python3 -c \'open("new", "w")\''),
    *("sleep 100 &", "kill 2", "mv a.txt new.txt", "split a.txt", "patch -i patch.diff"),
)
# Of commands whose words follow rules of their own: pieces that are put together at random.
_PIECES = {
    "ps": (
        *("aux", "-ef", "e", "ax", "-e", "-A", "ww", "eww", "-w", "-f", "u", "-u", "root", "-E"),
        *("-o cmd", "-eo pid,cmd", "o cmd", "-C", "o", "user", "-p 1", "-p $PPID", "p 2", "1"),
        *("--forest", "--sort=-rss", "-auxe", "axe", "-H", "-L", "-j", "--no-headers", "-T", "t"),
    ),
    "find": (
        *(".", "src", "link", "-name '*.py'", "-type f", "-print", "-print0", "-maxdepth 1", "!"),
        *("-o", r"\( -name a -o -name b \)", "-newer a.txt", "-size +1c", "-ls", "-prune"),
        *("-printf '%p\\n'", r"-exec cat {} \;", "-exec grep foo {} +", "-quit", "-empty"),
        *("-fprint new", "-fls new", "-delete", r"-exec rm {} \;", r"-ok rm {} \;", "-true"),
        *("-path './.git/*'", "-regex '.*'", "-mtime -1", "-perm 644", "-execdir ./run.sh {} +"),
        *("'-delete'", "-fprintf new %p", "-L", "-depth", "-mindepth 1", "-not", "-iname 'A*'"),
    ),
    "sed": (
        *("-n", "-E", "-e p", "a.txt", "b.txt", "p", "'1,2p'", "s/a/b/", "'s/a/b/g'", "'$d'"),
        *("'s/a/b/w new'", "'s/a/b/e'", "'w new'", "'1e touch new'", "'r a.txt'", "y/abc/xyz/"),
        *(
            "'y/abc/xyz/;w new'",
            "'/foo/,+1d'",
            "'i text'",
            "'a\\\ntext'",
            "'{p;p}'",
            "'s,a,w new,'",
        ),
        *(
            "'s/a/b/pw new'",
            "'#n'",
            "=",
            "l",
            "q",
            "F",
            "e",
            "'W new'",
            "-i",
            "-i.orig",
            "-s",
            "-z",
        ),
        *("-f commands.txt", "--sandbox", "--expression=p", "-ni", "'s/a/b/;s/c/d/'", "'/x/!d'"),
        *("'s/\\//w new/'", "'s/[/]w/b/'", "'b;w new'", "':a;n;ba'", "'}'", "'s/a/b/\nw new'"),
    ),
    "awk": (
        *("'{print}'", "'{print $1}'", "-F,", "a.txt", "data.csv", "'NR==1'", "'/a/'", "-v x=1"),
        *(
            "'{print > \"new\"}'",
            "'BEGIN{system(\"touch new\")}'",
            "'{print | \"sh\"}'",
            "-f run.sh",
        ),
        *("'{\"date\" | getline d; print d}'", "'END{print NR}'", "'{n += $1} END {print n}'"),
    ),
    "tar": (
        *("tf", "-tf", "-tvf", "archive.tar", "-t", "-f archive.tar", "--list", "-v", "xf", "-xf"),
        *("cf", "-cf new.tar", "a.txt", "--file=archive.tar", "-I ./run.sh", "--index-file=new"),
        *("-x", "--to-stdout", "-O", "-C src", "--checkpoint=1", "--wildcards", "-z", "tvf"),
    ),
    "xargs": (
        *("-n1", "-0", "-I{}", "-r", "-P2", "-a list.txt", "cat", "ls", "grep foo", "wc -l"),
        *("rm", "touch", "echo", "sh -c 'touch new'", "head -n 1", "-t", "-L1", "< list.txt", "{}"),
    ),
    "env": (
        *("-i", "-u X", "A=1", "LC_ALL=C", "ls", "cat a.txt", "touch new", "-S 'touch new'", "-0"),
        *("-C src", "--", "PATH=.", "true", "--chdir=src", "sort a.txt"),
    ),
    "test": (
        *("-f a.txt", "-d src", "!", "-e missing", "a = b", "-n x", "-z x", "1 -eq 1", "-v X"),
        *(
            "-o",
            "-a",
            "-s a.txt",
            "a.txt -nt b.txt",
            "'x[$(touch new)]' -eq 1",
            "-v 'x[$(touch n)]'",
        ),
    ),
    "git": (
        *("-C src", "--no-pager", "-c color.ui=always", "-c core.pager=./run.sh", "-P", "--bare"),
        *("status", "log", "diff", "show", "branch", "tag", "stash", "config", "remote", "reflog"),
        *("--stat", "-p", "--oneline", "-3", "HEAD", "main", "list", "-v", "-a", "--", "a.txt"),
        *("--get user.name", "-D", "-d", "new", "v1", "--output=new", "--ext-diff", "--cached"),
        *("show", "expire --all", "clean -n", "clean -f", "worktree list", "fetch", "gc", "prune"),
        *("notes", "bisect log", "grep foo", "blame a.txt", "--exec-path=.", "-O./run.sh", "drop"),
        *("rev-parse HEAD", "update-index --refresh", "ls-files", "submodule", "diff --no-index"),
        *("cd odd/bare", "-C odd/bare", "--git-dir=odd/bare", "describe", "archive HEAD", "commit"),
    ),
}
_PIECES["["] = _PIECES["test"]
_PIECES["egrep"] = ("foo", "-r", "-c", "a.txt")
_PREFIXES = ("time ", "nice ", "env ", "timeout 5 ", "command ", "LC_ALL=C ", "nohup ", "! ")
_RISKY_PREFIXES = ("xargs ", "exec ", "PATH=. ", "A=1 ", "X=$(touch new) ", "builtin ", "sudo ")
_REDIRECTIONS = ("2>/dev/null", "2>&1", "< a.txt", "> /dev/null", "<<< text", "&>/dev/null")
_RISKY_REDIRECTIONS = (
    "> new.txt",
    ">> a.txt",
    "2> new.txt",
    "&> new.txt",
    ">| a.txt",
    "<> new.txt",
)
_JOINS = (" | ", " | ", " && ", "; ", " || ", "\n", " |& ", " & ")
_SHAPES = (
    "({})",
    "{{ {}; }}",
    "echo $({})",
    'echo "a `{}` b"',
    "if {}; then ls; fi",
    "for x in a.txt b.txt; do {}; done",
    "while {}; do break; done",
    "cat <({})",
    "cd src && {}",
    "f() {{ {}; }}; f",
    "cat <<EOF\n$({})\nEOF",
    "case a in a) {} ;; esac",
    "{} # touch new",
    "cat <<'EOF'\n{}\nEOF",
    "cd odd && {}",
    "[[ -n $({}) ]]",
)
# What goes on until it is ended: the letters of options, and names that are left out.
_ENDLESS = {"tail": "fF", "shuf": "r", "dmesg": "wW", "journalctl": "f", "netstat": "c"}
_ENDLESS_LONG = ("--follow", "--repeat", "--retry", "--pid", "--follow-new", "--wait")
_LONG_RUNNING = frozenset(
    "yes sleep top watch less more vmstat iostat mpstat sar pidstat ping htop".split()
)
_SLOW = frozenset(
    "npm node kubectl docker yq man apropos whatis pip pip3 gh aws terraform cargo go apt apt-get"
    " apt-cache".split()
)
"""Programs that take a tenth of a second and more to begin."""


def names_to_try(*, slow: bool) -> tuple[str, ...]:
    """Return the names of described commands that this machine has: `sort`, `git log`.

    Args:
        slow: With those that take long to begin.
    """
    names = {*ROWS, *SPECIAL} - _LONG_RUNNING
    names = {name for name in names if slow or name.split()[0] not in _SLOW}
    has = {
        name: name in BUILTINS or shutil.which(name) is not None
        for name in {name.split()[0] for name in names}
    }
    return tuple(sorted(name for name in names if has[name.split()[0]]))


class BuiltLine(NamedTuple):
    """A line."""

    text: str
    names: frozenset[str]
    """The names of its described commands: `sort`, `git log`."""


class CommandLines:
    """Builds lines.

    Args:
        random: Makes every choice.
        names: The commands; those of `names_to_try`.
    """

    def __init__(self, random: Random, names: Sequence[str]) -> None:
        self._random = random
        self._names = names
        self._used = set[str]()

    def line(self) -> BuiltLine:
        """Build one line."""
        self._used.clear()
        parts = [self._shaped(2)]
        while len(parts) < 4 and self._happens(4):
            parts.append(self._random.choice(_JOINS))
            parts.append(self._shaped(1))
        return BuiltLine("".join(parts), frozenset(self._used))

    def _happens(self, one_in: int) -> bool:
        return self._random.randrange(one_in) == one_in - 1

    def _shaped(self, depth: int) -> str:
        text = self._command()
        while depth > 0 and self._happens(5):
            text = self._random.choice(_SHAPES).format(text)
            depth -= 1
        return text

    def _command(self) -> str:
        if self._happens(40):
            return self._random.choice(_OTHERS)
        name = self._random.choice(self._names)
        self._used.add(name)
        text = self._spelled(name) + self._words(name)
        if self._happens(8):
            text = self._random.choice(_PREFIXES) + text
        if self._happens(40):
            text = self._random.choice(_RISKY_PREFIXES) + text
        if self._happens(6):
            text += " " + self._random.choice(_REDIRECTIONS)
        if self._happens(40):
            text += " " + self._random.choice(_RISKY_REDIRECTIONS)
        return text

    def _spelled(self, name: str) -> str:
        if not self._happens(12):
            return name
        first, _, rest = name.partition(" ")
        spelling = self._random.choice(("'{0}'", r"\{0}", "/usr/bin/{0}", "{1}''{2}", '"{0}"'))
        spelled = spelling.format(first, first[:1], first[1:])
        return f"{spelled} {rest}" if rest else spelled

    def _words(self, name: str) -> str:
        row = ROWS.get(name)
        pieces = _PIECES.get(name.split()[0]) if row is None or self._happens(4) else None
        words: list[str] = []
        if pieces is not None:
            words += [self._random.choice(pieces) for _ in range(self._random.randrange(1, 5))]
        elif row is not None:
            words += [self._option(row) for _ in range(self._random.randrange(4))]
            words = [word for word in words if not self._is_endless(name, word)]
            if row.leading and not self._happens(10):
                words += ["foo"] * row.leading
        if self._happens(25):
            words.insert(self._random.randrange(len(words) + 1), self._random.choice(_RISKY))
        if name == "[":
            words.append("]")
        elif pieces is None or self._happens(3):
            words += [self._operand() for _ in range(self._random.randrange(3))]
        return "".join(f" {word}" for word in words)

    def _is_endless(self, name: str, word: str) -> bool:
        letters = _ENDLESS.get(name, "")
        if word.startswith("--"):
            option = word.partition("=")[0]
            return any(endless.startswith(option) for endless in _ENDLESS_LONG)
        return any(letter in word for letter in letters)

    def _operand(self) -> str:
        kind = self._random.randrange(12)
        if kind < 7:
            return self._random.choice(_FILES)
        if kind < 10:
            return self._random.choice(_WORDS)
        return self._random.choice(_PATTERNS if kind == 10 else _UNKNOWN)

    def _option(self, row: Command) -> str:
        """Spell an option of a row, once in a while one that it does not have."""
        if not row.kinds or self._happens(30):
            return self._random.choice(_RISKY)
        name = self._random.choice(tuple(row.kinds))
        kind = row.kinds[name]
        if kind == "asks" and not self._happens(4):
            name = self._random.choice(tuple(row.kinds))
            kind = row.kinds[name]
        is_long = name.startswith("--") or row.single_dash
        if is_long and self._happens(12):
            name = name[: self._random.randrange(2, len(name) + 1)]
        if kind == "flag" or (kind == "optional" and not self._happens(2)):
            return name if is_long else self._cluster(row, name)
        value = self._random.choice(_FILES if kind == "file" else _VALUES)
        if self._happens(6):
            value = self._random.choice((*_FILES, *_UNKNOWN, "./run.sh", "new.txt"))
        if kind == "optional" or self._happens(2):
            return f"{name}={value}" if is_long else self._cluster(row, name) + value
        return f"{name} {value}"

    def _cluster(self, row: Command, name: str) -> str:
        """Put another letter before a short option: `-n` becomes `-rn`."""
        letters = [flag for flag, kind in row.kinds.items() if len(flag) == 2 and kind == "flag"]
        if not letters or row.single_dash or not self._happens(4):
            return name
        return self._random.choice(letters) + name[1:]
