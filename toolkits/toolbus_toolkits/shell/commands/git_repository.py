"""What the configuration of a git repository makes git run.

`git status` and `git diff` run what a repository's own configuration names: filters of contents,
converters for diffs, monitors of the file system. Who may write a `.git` folder, as an unpacked
archive does, so chooses what these commands run. The settings of the user are theirs and count as
harmless. (git-config(1), gitattributes(5), and the section SECURITY of git(1).)
"""

from __future__ import annotations

import os
import re
import stat
from functools import lru_cache
from typing import NamedTuple

from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.workspace import PATH_MAX

__all__ = ["config_programs", "runs_gpg"]

# Bounds on what one question reads. An index of a very large repository has some 50 MB; no
# configuration that people write has a hundredth of this.
_MAX_CONFIG_BYTES = 256 * 1024
_MAX_INDEX_BYTES = 128 * 1024 * 1024
_MAX_REPOSITORIES = 100

# Sections of which no key makes a command that only reads run a program. `alias` is among them
# because an alias never replaces a command of git itself; `credential`, `http` and `url` because
# only what talks to other machines reads them.
_HARMLESS_SECTIONS = frozenset(
    "advice alias am apply author blame branch checkout clean clone color column commit committer "
    "credential difftool feature fetch format gc gitflow grep gui http index init lfs maintenance "
    "merge mergetool notes pack pretty pull push rebase receive rerere sendemail stash status "
    "submodule svn-remote tag url user versionsort worktree".split()
)
# Of other sections these keys only; `*` stands for any subsection. `core.hooksPath` is among them
# because what only reads runs no hook; `core.sshCommand` because it talks to no other machine.
_HARMLESS_KEYS = frozenset(
    "core.abbrev core.autocrlf core.bare core.bigfilethreshold core.checkroundtripencoding "
    "core.checkstat core.commentchar core.commentstring core.commitgraph core.compression "
    "core.deltabasecachelimit core.editor core.eol core.filemode core.fscache core.fsync "
    "core.fsyncmethod core.fsyncobjectfiles core.hidedotfiles core.hookspath core.ignorecase "
    "core.ignorestat core.logallrefupdates core.longpaths core.loosecompression core.maxtreedepth "
    "core.multipackindex core.notesref core.packedgitlimit core.packedgitwindowsize "
    "core.precomposeunicode core.preloadindex core.protecthfs core.protectntfs core.quotepath "
    "core.repositoryformatversion core.safecrlf core.sharedrepository core.sparsecheckout "
    "core.sparsecheckoutcone core.splitindex core.sshcommand core.symlinks core.trustctime "
    "core.untrackedcache core.warnambiguousrefs core.whitespace "
    "diff.algorithm diff.autorefreshindex diff.colormoved diff.colormovedws diff.context "
    "diff.dirstat diff.dstprefix diff.guitool diff.ignoresubmodules diff.indentheuristic "
    "diff.interhunkcontext diff.mnemonicprefix diff.noprefix diff.orderfile diff.relative "
    "diff.renamelimit diff.renames diff.srcprefix diff.statgraphwidth diff.statnamewidth "
    "diff.submodule diff.suppressblankempty diff.tool diff.wordregex diff.wserrorhighlight "
    "diff.*.algorithm diff.*.binary diff.*.funcname diff.*.wordregex diff.*.xfuncname "
    "extensions.compatobjectformat extensions.noop extensions.objectformat "
    "extensions.preciousobjects extensions.refstorage extensions.relativeworktrees "
    "extensions.worktreeconfig gpg.format log.abbrevcommit log.date log.decorate "
    "log.excludedecoration log.follow log.graphcolors log.initialdecorationset log.mailmap "
    "log.showroot remote.pushdefault remote.*.fetch remote.*.followremotehead remote.*.gh-resolved "
    "remote.*.mirror remote.*.prune remote.*.prunetags remote.*.push remote.*.pushurl "
    "remote.*.skipdefaultupdate remote.*.skipfetchall remote.*.tagopt remote.*.url".split()
)
# Keys that are harmless with these values.
_BOOLEANS = frozenset(("true", "false", "yes", "no", "on", "off", "1", "0", ""))
_FALSE = frozenset("false no off 0".split())
_HARMLESS_VALUES = {
    "core.fsmonitor": _BOOLEANS,
    "log.showsignature": _FALSE,
    "remote.*.promisor": _FALSE,
}

_SPACE = re.compile(r"(?:[ \t\r\n]+|[#;][^\n]*)+")
_SECTION = re.compile(r'\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\[^\n])*)")?\]')
_KEY = re.compile(
    r"([A-Za-z][A-Za-z0-9-]*)[ \t]*"
    r'(?:=((?:[^"\\\n#;]|\\(?:.|\n)|"(?:[^"\\\n]|\\(?:.|\n))*")*)(?:[#;][^\n]*)?)?(?=\n|\Z)'
)
_GPG = re.compile(r"%[-+ ]?G|[sS][iI][gG][nN][aA][tT][uU][rR][eE]")


def runs_gpg(form: str) -> bool:
    """Whether a format or a sort key of git checks signatures, which starts gpg."""
    return _GPG.search(form) is not None


class _Seen(NamedTuple):
    """A file as it is now, to know again what was read of it."""

    path: str
    inode: int
    size: int
    changed: int
    modified: int


def config_programs(directory: str) -> str:
    """Return why git may run programs that the repository around a folder names, as a clause.

    It looks at each repository that the folder is in, since git skips those that are not valid, and
    at their submodules, which git looks into. Empty if none of them names a program.
    """
    waiting: list[str] = []
    folder = os.path.realpath(directory)
    while True:
        waiting.append(folder)
        # Versions of git before 2.38 do not know `safe.bareRepository`, which the environment sets.
        if all(os.path.lexists(os.path.join(folder, name)) for name in ("HEAD", "objects")):
            return f"{folder!r} is a bare repository"
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    seen = set(waiting)
    repositories = 0
    while waiting:
        folder = waiting.pop()
        if not os.path.lexists(os.path.join(folder, ".git")):
            continue
        repositories += 1
        if repositories > _MAX_REPOSITORIES:
            return f"it has more than {_MAX_REPOSITORIES} submodules"
        try:
            reason, submodules = _look(folder)
        except (OSError, ValueError) as error:
            return f"its repository in {folder!r} cannot be read ({error})"
        if reason:
            return f"the configuration of the repository {folder!r} {reason}"
        fresh = {os.path.realpath(os.path.join(folder, name)) for name in submodules} - seen
        seen |= fresh
        waiting.extend(sorted(fresh))
    return ""


def _look(folder: str) -> tuple[str, tuple[str, ...]]:
    """Return what a repository's configuration names, and the folders of its submodules."""
    git = os.path.join(folder, ".git")
    if not os.path.isdir(git):
        git = os.path.join(folder, _linked(git, "gitdir: "))
    common = git
    if os.path.lexists(os.path.join(git, "commondir")):
        common = os.path.join(git, _linked(os.path.join(git, "commondir"), ""))
    settings: list[tuple[str, str]] = []
    for path in (os.path.join(common, "config"), os.path.join(git, "config.worktree")):
        file = _seen(path, _MAX_CONFIG_BYTES)
        if file is not None:
            settings.extend(_settings(file))
    for name, value in settings:
        if name == "core.worktree" and os.path.realpath(os.path.join(git, value)) == folder:
            continue
        if not _is_harmless(name, value):
            return f"sets {one_line(name, SHOWN_CHARS)!r}", ()
    hash_length = 32 if ("extensions.objectformat", "sha256") in settings else 20
    submodules: list[str] = []
    for name in [name for name in os.listdir(git) if name.startswith("sharedindex.")] + ["index"]:
        file = _seen(os.path.join(git, name), _MAX_INDEX_BYTES)
        if file is not None:
            submodules.extend(_submodules(file, hash_length))
    return "", tuple(submodules)


def _is_harmless(name: str, value: str) -> bool:
    section, _, rest = name.partition(".")
    subsection, dot, key = rest.rpartition(".")
    general = f"{section}.*.{key}" if dot else name
    if general in _HARMLESS_VALUES:
        return value.lower() in _HARMLESS_VALUES[general]
    if section == "diff" and subsection == "*":
        return False
    return (section in _HARMLESS_SECTIONS or general in _HARMLESS_KEYS) and not runs_gpg(value)


def _linked(path: str, prefix: str) -> str:
    """Return the path that a file of git holds."""
    file = _seen(path, PATH_MAX)
    text = "" if file is None else os.fsdecode(_read(file))
    if not text.startswith(prefix):
        raise ValueError(f"{os.path.basename(path)} holds no path")
    return text.removeprefix(prefix).rstrip("\r\n")


def _seen(path: str, limit: int) -> _Seen | None:
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(now.st_mode):
        raise ValueError(f"{os.path.basename(path)} is no file")
    if now.st_size > limit:
        raise ValueError(f"{os.path.basename(path)} has more than {limit} bytes")
    return _Seen(path, now.st_ino, now.st_size, now.st_ctime_ns, now.st_mtime_ns)


def _read(file: _Seen) -> bytes:
    # Without O_NONBLOCK a pipe that replaced the file in the meantime would hold the process.
    descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        return stream.read(file.size)


@lru_cache(maxsize=512)
def _settings(file: _Seen) -> tuple[tuple[str, str], ...]:
    """Return the names, in lower case without their subsections' case, and values of a file."""
    text = _read(file).decode("latin-1").removeprefix("\xef\xbb\xbf").replace("\r\n", "\n")
    found: list[tuple[str, str]] = []
    section = ""
    position = 0
    while position < len(text):
        if match := _SPACE.match(text, position):
            pass
        elif match := _SECTION.match(text, position):
            section = match[1].lower()
            if match[2] is not None:
                section += "." + re.sub(r"\\(.)", r"\1", match[2])
        elif section and (match := _KEY.match(text, position)):
            # Blanks at the ends do not count, and quotes and escapes are no part of the value. An
            # escape such as `\t` keeps its letter here: no value that is compared has one.
            value = re.sub(r'\\\n|"|\\(?=.)', "", match[2] or "").strip(" \t\r\n")
            found.append((f"{section}.{match[1].lower()}", value))
        else:
            raise ValueError("a line of its configuration is not understood")
        position = match.end()
    return tuple(found)


@lru_cache(maxsize=128)
def _submodules(file: _Seen, hash_length: int) -> tuple[str, ...]:
    """Return the folders of submodules in an index, as gitformat-index(5) describes it.

    The mode of such an entry, 160000 in octal, stands 24 bytes after its start; other fields with
    the same bytes give names that do not exist, and do no harm.
    """
    data = _read(file)
    version = int.from_bytes(data[4:8], "big")
    found: list[str] = []
    position = data.find(b"\x00\x00\xe0\x00", 12)
    while position >= 0:
        if version == 4:
            # Here a name needs all names before it.
            raise ValueError("its index has version 4 and may have submodules")
        flags_at = position + 16 + hash_length
        is_extended = flags_at < len(data) and data[flags_at] & 0x40
        name_at = flags_at + (4 if is_extended else 2)
        end = data.find(b"\x00", name_at)
        if end > name_at:
            found.append(os.fsdecode(data[name_at:end]))
        position = data.find(b"\x00\x00\xe0\x00", position + 1)
    return tuple(found)
