"""Archives: to list and to show them reads, to pack and to unpack writes.

Programs that unpack (`tar tzf` starts gzip) have fixed names, and only read here.

Source: their manual pages and `--help`; each row has its version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from toolbus_toolkits.shell.commands.effects import Effect
from toolbus_toolkits.shell.commands.table import Arguments, Command, asking, row_effect
from toolbus_toolkits.shell.reading import SimpleCommand, Word

__all__ = ["ROWS", "SPECIAL"]

_OLD_STYLE = re.compile(r"[A-Za-z]*?f?")
_HOST = re.compile(r"[^/]*:")


def _tar_list(arguments: Arguments) -> Effect:
    archives = arguments.values("-f --file")
    if not arguments.has("-t --list"):
        return Effect(why="it packs or unpacks files")
    for archive in archives:
        # `host:file` is an archive of another machine, which rsh is started for.
        if archive.value is None or _HOST.match(archive.value):
            return Effect(why=f"`{archive.source}` may be an archive of another machine")
    if not archives:
        return Effect(why="without `-f` it reads a device")
    return Effect(read_only=True, reads=arguments.paths())


_TAR = Command(
    name="tar",
    source="tar(1), GNU tar 1.34",
    flags="-t --list -v --verbose -z --gzip --gunzip --ungzip -j --bzip2 -J --xz --lzma --zstd -Z"
    " --compress --uncompress -a --auto-compress --utc --full-time --numeric-owner --wildcards"
    " --no-wildcards --force-local --show-transformed-names --null --help --version",
    valued="--exclude --strip-components --quoting-style",
    files="-f --file",
    asks={
        "-x --extract --get": "unpacks files",
        "-c --create": "writes an archive",
        "-r --append -u --update -A --catenate --concatenate --delete": "changes an archive",
        "--to-command --checkpoint-action -I --use-compress-program": "runs a program",
        "-F --info-script --new-volume-script --rsh-command --rmt-command": "runs a program",
        "--index-file -g --listed-incremental --volno-file": "writes a file",
        "--remove-files": "deletes files",
    },
    operands="words",
    effect=_tar_list,
)


def _tar(command: SimpleCommand) -> Effect:
    first = command.words[1] if len(command.words) > 1 else None
    text = None if first is None else first.value
    if text is None or text.startswith("-"):
        return row_effect(_TAR, command)
    # `tar tvf a.tar`: each letter takes its value from the words that follow. With the `f` at the
    # end alone that is what `-tvf a.tar` does.
    if not _OLD_STYLE.fullmatch(text) or "f" in text[:-1]:
        return Effect(why=f"`{text}` of `tar` is not known")
    dashed = Word(f"-{text}", f"-{text}")
    return row_effect(_TAR, replace(command, words=(command.words[0], dashed, *command.words[2:])))


def _unzip(arguments: Arguments) -> Effect:
    if arguments.has("-l -v -p -c -t -z"):
        return Effect(read_only=True, reads=arguments.operands[:1])
    return Effect(why="it unpacks files")


def _compress(arguments: Arguments) -> Effect:
    shows = arguments.has("-c --stdout --to-stdout -h --help -V --version")
    # Of `-l`, `-t`, `-d` and `-z`, the last one holds.
    if not arguments.has("-d --decompress -z --compress"):
        shows = shows or arguments.has("-l --list -t --test")
    is_filter = not arguments.operands
    if shows or is_filter or arguments.row.name.endswith("cat"):
        return Effect(
            read_only=True, reads=arguments.operands, is_recursive=arguments.is_recursive()
        )
    return Effect(why="it replaces files by packed or unpacked ones")


def _packer(name: str, source: str, flags: str, *, valued: str = "", optional: str = "") -> Command:
    return Command(
        name=name,
        source=source,
        flags=f"{flags} -c --stdout -d --decompress -k --keep -t --test -q --quiet -v --verbose -f"
        " --force -h --help -V --version",
        valued=valued,
        optional=optional,
        recursive="-r --recursive",
        digits=True,
        effect=_compress,
    )


_GZIP_FLAGS = "--to-stdout -l --list -n --no-name -N --name -r --recursive --fast --best"
_XZ_FLAGS = "--to-stdout -l --list -z --compress -e --extreme"

ROWS: tuple[Command, ...] = (
    _TAR,
    Command(
        name="unzip",
        source="unzip(1), unzip 6.0",
        flags="-l -v -p -c -t -z -q",
        effect=_unzip,
    ),
    Command(
        name="zipinfo",
        source="zipinfo(1), unzip 6.0",
        flags="-1 -2 -s -m -l -v -h -t -T -z",
    ),
    *(_packer(name, f"{name}(1), gzip 1.12", _GZIP_FLAGS) for name in ("gzip", "gunzip", "zcat")),
    *(
        _packer(name, f"{name}(1), XZ Utils 5.4", _XZ_FLAGS, valued="-T --threads")
        for name in ("xz", "unxz", "xzcat")
    ),
    *(
        _packer(name, f"{name}(1), bzip2 1.0.8", "-z --compress -s --small --fast --best")
        for name in ("bzip2", "bunzip2", "bzcat")
    ),
    *(
        _packer(name, f"{name}(1), zstd 1.5", "-l", optional="-T")
        for name in ("zstd", "unzstd", "zstdcat")
    ),
)

SPECIAL: Mapping[str, Callable[[SimpleCommand], Effect]] = {
    "tar": _tar,
    "zip": asking("writes an archive"),
    "7z": asking("packs or unpacks files"),
    "cpio": asking("packs or unpacks files"),
    "ar": asking("changes an archive"),
}
