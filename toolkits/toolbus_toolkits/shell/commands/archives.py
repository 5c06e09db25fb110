"""Archives: to list and to show them reads, to pack and to unpack writes.

Programs that unpack (`tar tzf` starts gzip) have fixed names, and only read here.

Source: the manual pages and `--help` of GNU tar 1.34, unzip 6.0, gzip 1.12, XZ Utils 5.4, bzip2
1.0.8 and zstd 1.5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from toolbus_toolkits.shell.commands.table import (
    Arguments,
    Command,
    Effect,
    asking,
    row_effect,
    takes_words,
)
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


_TAR = takes_words(
    "tar",
    "-t --list -v --verbose -z --gzip --gunzip --ungzip -j --bzip2 -J --xz --lzma --zstd -Z"
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
    effect=_tar_list,
)


def _tar(command: SimpleCommand) -> Effect:
    text = command.value(1)
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


def _packer(names: str, flags: str, *, valued: str = "", optional: str = "") -> Command:
    return Command(
        names,
        f"{flags} -c --stdout -d --decompress -k --keep -t --test -q --quiet -v --verbose -f"
        " --force -h --help -V --version",
        valued=valued,
        optional=optional,
        recursive="-r --recursive",
        digits=True,
        effect=_compress,
    )


ROWS: tuple[Command, ...] = (
    _TAR,
    Command("unzip", "-l -v -p -c -t -z -q", effect=_unzip),
    Command("zipinfo", "-1 -2 -s -m -l -v -h -t -T -z"),
    _packer(
        "gzip, gunzip, zcat",
        "--to-stdout -l --list -n --no-name -N --name -r --recursive --fast --best",
    ),
    _packer(
        "xz, unxz, xzcat",
        "--to-stdout -l --list -z --compress -e --extreme",
        valued="-T --threads",
    ),
    _packer("bzip2, bunzip2, bzcat", "-z --compress -s --small --fast --best"),
    _packer("zstd, unzstd, zstdcat", "-l", optional="-T"),
)

SPECIAL: Mapping[str, Callable[[SimpleCommand], Effect]] = {
    "tar": _tar,
    "zip": asking("writes an archive"),
    "7z, cpio": asking("packs or unpacks files"),
    "ar": asking("changes an archive"),
}
