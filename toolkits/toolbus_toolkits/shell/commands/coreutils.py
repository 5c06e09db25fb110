"""Commands of GNU coreutils that read, sort and show.

Source: their manual pages and `--help`.
"""

from __future__ import annotations

from dataclasses import replace

from toolbus_toolkits.shell.commands.effects import Effect
from toolbus_toolkits.shell.commands.table import Arguments, Command

__all__ = ["ROWS"]

_COREUTILS = "GNU coreutils 9.1"


def _date(arguments: Arguments) -> Effect:
    for word in arguments.operands:
        text = word.known
        if not text.startswith("+") or (word.value is None and word.is_split):
            return Effect(why=f"`{word.source}` sets the clock")
    return Effect(read_only=True, reads=arguments.paths())


_DIGEST = Command(
    name="md5sum",
    source=f"md5sum(1), {_COREUTILS}",
    flags="-b --binary -c --check --tag -t --text -z --zero --ignore-missing --quiet --status"
    " --strict -w --warn --help --version",
    any_option=True,
)

_LS = Command(
    name="ls",
    source=f"ls(1), {_COREUTILS}",
    flags="-a --all -A --almost-all --author -b --escape -B --ignore-backups -c -C -d --directory"
    " -D --dired -f --file-type --full-time -g --group-directories-first -G --no-group -h"
    " --human-readable --si -H --dereference-command-line"
    " --dereference-command-line-symlink-to-dir -i --inode -k --kibibytes -l -L --dereference -m"
    " -n --numeric-uid-gid -N --literal -o -p -q --hide-control-chars --show-control-chars -Q"
    " --quote-name -r --reverse -R --recursive -s --size -S -t -u -U -v -x -X -Z --context --zero"
    " -1 -F --help --version",
    valued="--block-size --format --hide --indicator-style -I --ignore --quoting-style --sort"
    " --time --time-style -T --tabsize -w --width",
    optional="--color --classify --hyperlink",
    any_option=True,
)

ROWS: tuple[Command, ...] = (
    _LS,
    replace(_LS, name="dir", source=f"dir(1), {_COREUTILS}"),
    replace(_LS, name="vdir", source=f"vdir(1), {_COREUTILS}"),
    Command(
        name="cat",
        source=f"cat(1), {_COREUTILS}",
        flags="-A --show-all -b --number-nonblank -e -E --show-ends -n --number -s"
        " --squeeze-blank -t -T --show-tabs -u -v --show-nonprinting --help --version",
        any_option=True,
    ),
    Command(
        name="tac",
        source=f"tac(1), {_COREUTILS}",
        flags="-b --before -r --regex --help --version",
        valued="-s --separator",
        any_option=True,
    ),
    Command(
        name="head",
        source=f"head(1), {_COREUTILS}",
        flags="-q --quiet --silent -v --verbose -z --zero-terminated --help --version",
        valued="-c --bytes -n --lines",
        digits=True,
        any_option=True,
    ),
    Command(
        name="tail",
        source=f"tail(1), {_COREUTILS}",
        flags="-f -F -q --quiet --silent --retry -v --verbose -z --zero-terminated --help"
        " --version",
        valued="-c --bytes -n --lines --max-unchanged-stats --pid -s --sleep-interval",
        optional="--follow",
        digits=True,
        any_option=True,
    ),
    Command(
        name="wc",
        source=f"wc(1), {_COREUTILS}",
        flags="-c --bytes -m --chars -l --lines -L --max-line-length -w --words --help --version",
        files="--files0-from",
        any_option=True,
    ),
    Command(
        name="sort",
        source=f"sort(1), {_COREUTILS}",
        flags="-b --ignore-leading-blanks -d --dictionary-order -f --ignore-case"
        " -g --general-numeric-sort -i --ignore-nonprinting -M --month-sort"
        " -h --human-numeric-sort -n --numeric-sort -R --random-sort -r --reverse"
        " -V --version-sort -c -C -m --merge -s --stable -u --unique -z --zero-terminated"
        " --debug --help --version",
        valued="--sort --batch-size -k --key -S --buffer-size -t --field-separator --parallel",
        files="--random-source",
        optional="--check",
        asks={
            "--files0-from": "names further files",
            "-o --output": "writes a file",
            "--compress-program": "runs a program",
            "-T --temporary-directory": "names a folder that it writes in",
        },
    ),
    Command(
        name="uniq",
        source=f"uniq(1), {_COREUTILS}",
        flags="-c --count -d --repeated -D -i --ignore-case -u --unique -z --zero-terminated"
        " --help --version",
        valued="-f --skip-fields -s --skip-chars -w --check-chars",
        optional="--all-repeated --group",
        at_most=1,
        beyond="the second operand of `uniq` is a file that it writes",
        permutes=False,
        any_option=True,
    ),
    Command(
        name="cut",
        source=f"cut(1), {_COREUTILS}",
        flags="-n --complement -s --only-delimited -z --zero-terminated --help --version",
        valued="-b --bytes -c --characters -d --delimiter -f --fields --output-delimiter",
        any_option=True,
    ),
    Command(
        name="tr",
        source=f"tr(1), {_COREUTILS}",
        flags="-c -C --complement -d --delete -s --squeeze-repeats -t --truncate-set1 --help"
        " --version",
        operands="words",
        any_option=True,
    ),
    Command(
        name="nl",
        source=f"nl(1), {_COREUTILS}",
        flags="-p --no-renumber --help --version",
        valued="-b --body-numbering -d --section-delimiter -f --footer-numbering -h"
        " --header-numbering -i --line-increment -l --join-blank-lines -n --number-format -s"
        " --number-separator -v --starting-line-number -w --number-width",
        any_option=True,
    ),
    Command(
        name="od",
        source=f"od(1), {_COREUTILS}",
        flags="-v --output-duplicates --help --version -a -b -c -d -f -i -l -o -s -x",
        valued="-A --address-radix --endian -j --skip-bytes -N --read-bytes -t --format -S",
        optional="--strings -w --width",
        any_option=True,
    ),
    Command(
        name="stat",
        source=f"stat(1), {_COREUTILS}",
        flags="-L --dereference -f --file-system -t --terse --help --version",
        valued="--cached --printf -c --format",
        any_option=True,
    ),
    Command(
        name="du",
        source=f"du(1), {_COREUTILS}",
        flags="-0 --null -a --all --apparent-size -b --bytes -c --total -D --dereference-args -H"
        " -h --human-readable --inodes -k -L --dereference -l --count-links -m -P"
        " --no-dereference -S --separate-dirs --si -s --summarize -x --one-file-system --help"
        " --version",
        valued="-B --block-size -d --max-depth -t --threshold --time-style --exclude",
        files="--files0-from -X --exclude-from",
        optional="--time",
        any_option=True,
    ),
    Command(
        name="df",
        source=f"df(1), {_COREUTILS}",
        flags="-a --all -h --human-readable -H --si -i --inodes -k -l --local --no-sync -P"
        " --portability --total -T --print-type -v --help --version",
        valued="-B --block-size -t --type -x --exclude-type",
        optional="--output",
        asks={"--sync": "writes what the system has not written yet"},
    ),
    Command(
        name="date",
        source=f"date(1), {_COREUTILS}",
        flags="--debug --resolution -R --rfc-email -u --utc --universal --help --version",
        valued="-d --date --rfc-3339",
        files="-f --file -r --reference",
        optional="-I --iso-8601",
        asks={"-s --set": "sets the clock"},
        operands="words",
        effect=_date,
    ),
    Command(
        name="basename",
        source=f"basename(1), {_COREUTILS}",
        flags="-a --multiple -z --zero --help --version",
        valued="-s --suffix",
        operands="words",
        any_option=True,
    ),
    Command(
        name="dirname",
        source=f"dirname(1), {_COREUTILS}",
        flags="-z --zero --help --version",
        operands="words",
        any_option=True,
    ),
    Command(
        name="readlink",
        source=f"readlink(1), {_COREUTILS}",
        flags="-f --canonicalize -e --canonicalize-existing -m --canonicalize-missing -n"
        " --no-newline -q --quiet -s --silent -v --verbose -z --zero --help --version",
        operands="words",
        any_option=True,
    ),
    Command(
        name="realpath",
        source=f"realpath(1), {_COREUTILS}",
        flags="-e --canonicalize-existing -m --canonicalize-missing -L --logical -P --physical -q"
        " --quiet -s --strip --no-symlinks -z --zero --help --version",
        valued="--relative-to --relative-base",
        operands="words",
        any_option=True,
    ),
    Command(
        name="seq",
        source=f"seq(1), {_COREUTILS}",
        flags="-w --equal-width --help --version",
        valued="-f --format -s --separator",
        operands="words",
        digits=True,
        any_option=True,
    ),
    *(
        replace(_DIGEST, name=name, source=f"{name}(1), {_COREUTILS}")
        for name in ("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum")
    ),
    replace(_DIGEST, name="b2sum", source=f"b2sum(1), {_COREUTILS}", valued="-l --length"),
    replace(
        _DIGEST,
        name="cksum",
        source=f"cksum(1), {_COREUTILS}",
        flags="-c --check --tag --untagged -z --zero --ignore-missing --quiet --status --strict"
        " -w --warn --debug --help --version",
        valued="-a --algorithm -l --length",
    ),
    Command(
        name="sum",
        source=f"sum(1), {_COREUTILS}",
        flags="-r -s --sysv --help --version",
        any_option=True,
    ),
    Command(
        name="comm",
        source=f"comm(1), {_COREUTILS}",
        flags="-1 -2 -3 --check-order --nocheck-order --total -z --zero-terminated --help"
        " --version",
        valued="--output-delimiter",
        any_option=True,
    ),
    Command(
        name="join",
        source=f"join(1), {_COREUTILS}",
        flags="-i --ignore-case --check-order --nocheck-order --header -z --zero-terminated"
        " --help --version",
        valued="-a -e -j -o -t -v -1 -2",
        any_option=True,
    ),
    Command(
        name="paste",
        source=f"paste(1), {_COREUTILS}",
        flags="-s --serial -z --zero-terminated --help --version",
        valued="-d --delimiters",
        any_option=True,
    ),
    Command(
        name="fold",
        source=f"fold(1), {_COREUTILS}",
        flags="-b --bytes -s --spaces --help --version",
        valued="-w --width",
        digits=True,
        any_option=True,
    ),
    Command(
        name="fmt",
        source=f"fmt(1), {_COREUTILS}",
        flags="-c --crown-margin -s --split-only -t --tagged-paragraph -u --uniform-spacing"
        " --help --version",
        valued="-p --prefix -w --width -g --goal",
        digits=True,
        any_option=True,
    ),
    Command(
        name="expand",
        source=f"expand(1), {_COREUTILS}",
        flags="-i --initial --help --version",
        valued="-t --tabs",
        digits=True,
        any_option=True,
    ),
    Command(
        name="unexpand",
        source=f"unexpand(1), {_COREUTILS}",
        flags="-a --all --first-only --help --version",
        valued="-t --tabs",
        digits=True,
        any_option=True,
    ),
    Command(
        name="pr",
        source=f"pr(1), {_COREUTILS}",
        flags="-a --across -c --show-control-chars -d --double-space -F -f --form-feed -J"
        " --join-lines -m --merge -r --no-file-warnings -t --omit-header -T --omit-pagination -v"
        " --show-nonprinting --help --version",
        valued="--columns -D --date-format -h --header -l --length -N --first-line-number -o"
        " --indent -w --width -W --page-width",
        optional="-e --expand-tabs -i --output-tabs -n --number-lines -s --separator -S"
        " --sep-string",
        digits=True,
        any_option=True,
    ),
    Command(
        name="shuf",
        source=f"shuf(1), {_COREUTILS}",
        flags="-e --echo -r --repeat -z --zero-terminated --help --version",
        valued="-i --input-range -n --head-count",
        files="--random-source",
        asks={"-o --output": "writes a file"},
    ),
    Command(
        name="numfmt",
        source=f"numfmt(1), {_COREUTILS}",
        flags="--debug --grouping -z --zero-terminated --help --version",
        valued="-d --delimiter --field --format --from --from-unit --invalid --padding --round"
        " --suffix --to --to-unit",
        optional="--header",
        operands="words",
        digits=True,
        any_option=True,
    ),
    Command(
        name="tsort",
        source=f"tsort(1), {_COREUTILS}",
        flags="--help --version",
        any_option=True,
    ),
    *(
        Command(
            name=name,
            source=f"{name}(1), {_COREUTILS}",
            flags="-d --decode -i --ignore-garbage --help --version"
            + (
                " --base64 --base64url --base32 --base32hex --base16 --base2msbf --base2lsbf --z85"
                if name == "basenc"
                else ""
            ),
            valued="-w --wrap",
            any_option=True,
        )
        for name in ("base64", "base32", "basenc")
    ),
    Command(
        name="printenv",
        source=f"printenv(1), {_COREUTILS}",
        flags="-0 --null --help --version",
        operands="words",
        any_option=True,
    ),
    Command(
        name="id",
        source=f"id(1), {_COREUTILS}",
        flags="-a -Z --context -g --group -G --groups -n --name -r --real -u --user -z --zero"
        " --help --version",
        operands="words",
        any_option=True,
    ),
    Command(
        name="who",
        source=f"who(1), {_COREUTILS}",
        flags="-a --all -b --boot -d --dead -H --heading --ips -l --login --lookup -m -p --process"
        " -q --count -r --runlevel -s --short -t --time -T -w --mesg -u --users --message"
        " --writable --help --version",
        any_option=True,
    ),
    Command(
        name="uname",
        source=f"uname(1), {_COREUTILS}",
        flags="-a --all -s --kernel-name -n --nodename -r --kernel-release -v --kernel-version -m"
        " --machine -p --processor -i --hardware-platform -o --operating-system --help --version",
        operands="words",
        any_option=True,
    ),
    Command(
        name="nproc",
        source=f"nproc(1), {_COREUTILS}",
        flags="--all --help --version",
        valued="--ignore",
        operands="words",
        any_option=True,
    ),
    Command(
        name="pathchk",
        source=f"pathchk(1), {_COREUTILS}",
        flags="-p -P --portability --help --version",
        operands="words",
        any_option=True,
    ),
    Command(
        name="tty",
        source=f"tty(1), {_COREUTILS}",
        flags="-s --silent --quiet --help --version",
        operands="words",
        any_option=True,
    ),
    *(
        Command(
            name=name,
            source=f"{name}(1), {_COREUTILS}",
            flags="--help --version",
            operands="words",
            any_option=True,
        )
        for name in (
            *("whoami", "groups", "users", "arch", "sleep", "factor", "logname", "hostid"),
            *("yes", "expr"),
        )
    ),
)
