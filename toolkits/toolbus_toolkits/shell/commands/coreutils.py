"""Commands of GNU coreutils that read, sort and show.

Source: their manual pages and `--help`.
"""

from __future__ import annotations

from toolbus_toolkits.shell.commands.table import Command

__all__ = ["ROWS"]

_COREUTILS = "GNU coreutils 9.1"

ROWS: tuple[Command, ...] = (
    Command(
        name="sort",
        source=f"sort(1), {_COREUTILS}",
        flags="-b --ignore-leading-blanks -d --dictionary-order -f --ignore-case"
        " -g --general-numeric-sort -i --ignore-nonprinting -M --month-sort"
        " -h --human-numeric-sort -n --numeric-sort -R --random-sort -r --reverse"
        " -V --version-sort -c -C -m --merge -s --stable -u --unique -z --zero-terminated"
        " --debug --help --version",
        valued="--sort --batch-size -k --key -S --buffer-size -t --field-separator --parallel",
        files="--random-source --files0-from",
        optional="--check",
        asks={
            "-o --output": "writes a file",
            "--compress-program": "runs a program",
            "-T --temporary-directory": "names a folder that it writes in",
        },
    ),
)
