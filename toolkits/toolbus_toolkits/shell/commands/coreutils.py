"""Commands of GNU coreutils that read, sort and show.

Source: their manual pages and `--help`, GNU coreutils 9.1.
"""

from __future__ import annotations

from dataclasses import replace

from toolbus_toolkits.shell.commands.table import (
    Arguments,
    Command,
    Effect,
    reads_files,
    shows,
    takes_words,
    with_flags,
)

__all__ = ["ROWS"]


def _date(arguments: Arguments) -> Effect:
    for word in arguments.operands:
        text = word.known
        if not text.startswith("+") or (word.value is None and word.is_split):
            return Effect(why=f"`{word.source}` sets the clock")
    return Effect(read_only=True, reads=arguments.paths())


_DIGEST = reads_files(
    "md5sum, sha1sum, sha224sum, sha256sum, sha384sum, sha512sum",
    "-b --binary -c --check --tag -t --text -z --zero --ignore-missing --quiet --status --strict -w"
    " --warn",
)

_LS = reads_files(
    "ls, dir, vdir",
    "-a --all -A --almost-all --author -b --escape -B --ignore-backups -c -C -d --directory -D"
    " --dired -f --file-type --full-time -g --group-directories-first -G --no-group -h"
    " --human-readable --si -H --dereference-command-line --dereference-command-line-symlink-to-dir"
    " -i --inode -k --kibibytes -l -L --dereference -m -n --numeric-uid-gid -N --literal -o -p -q"
    " --hide-control-chars --show-control-chars -Q --quote-name -r --reverse -R --recursive -s"
    " --size -S -t -u -U -v -x -X -Z --context --zero -1 -F",
    valued="--block-size --format --hide --indicator-style -I --ignore --quoting-style --sort"
    " --time --time-style -T --tabsize -w --width",
    optional="--color --classify --hyperlink",
)

ROWS: tuple[Command, ...] = with_flags(
    "--help --version",
    _LS,
    reads_files(
        "cat",
        "-A --show-all -b --number-nonblank -e -E --show-ends -n --number -s --squeeze-blank -t -T"
        " --show-tabs -u -v --show-nonprinting",
    ),
    reads_files("tac", "-b --before -r --regex", valued="-s --separator"),
    reads_files(
        "head",
        "-q --quiet --silent -v --verbose -z --zero-terminated",
        valued="-c --bytes -n --lines",
        digits=True,
    ),
    reads_files(
        "tail",
        "-f -F -q --quiet --silent --retry -v --verbose -z --zero-terminated",
        valued="-c --bytes -n --lines --max-unchanged-stats --pid -s --sleep-interval",
        optional="--follow",
        digits=True,
    ),
    reads_files(
        "wc",
        "-c --bytes -m --chars -l --lines -L --max-line-length -w --words",
        files="--files0-from",
    ),
    Command(
        "sort",
        "-b --ignore-leading-blanks -d --dictionary-order -f --ignore-case -g"
        " --general-numeric-sort -i --ignore-nonprinting -M --month-sort -h --human-numeric-sort -n"
        " --numeric-sort -R --random-sort -r --reverse -V --version-sort -c -C -m --merge -s"
        " --stable -u --unique -z --zero-terminated --debug",
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
    reads_files(
        "uniq",
        "-c --count -d --repeated -D -i --ignore-case -u --unique -z --zero-terminated",
        valued="-f --skip-fields -s --skip-chars -w --check-chars",
        optional="--all-repeated --group",
        at_most=1,
        beyond="the second operand of `uniq` is a file that it writes",
        permutes=False,
    ),
    reads_files(
        "cut",
        "-n --complement -s --only-delimited -z --zero-terminated",
        valued="-b --bytes -c --characters -d --delimiter -f --fields --output-delimiter",
    ),
    shows(
        "tr",
        "-c -C --complement -d --delete -s --squeeze-repeats -t --truncate-set1",
    ),
    reads_files(
        "nl",
        "-p --no-renumber",
        valued="-b --body-numbering -d --section-delimiter -f --footer-numbering -h"
        " --header-numbering -i --line-increment -l --join-blank-lines -n --number-format -s"
        " --number-separator -v --starting-line-number -w --number-width",
    ),
    reads_files(
        "od",
        "-v --output-duplicates -a -b -c -d -f -i -l -o -s -x",
        valued="-A --address-radix --endian -j --skip-bytes -N --read-bytes -t --format -S",
        optional="--strings -w --width",
    ),
    reads_files(
        "stat",
        "-L --dereference -f --file-system -t --terse",
        valued="--cached --printf -c --format",
    ),
    reads_files(
        "du",
        "-0 --null -a --all --apparent-size -b --bytes -c --total -D --dereference-args -H -h"
        " --human-readable --inodes -k -L --dereference -l --count-links -m -P --no-dereference -S"
        " --separate-dirs --si -s --summarize -x --one-file-system",
        valued="-B --block-size -d --max-depth -t --threshold --time-style --exclude",
        files="--files0-from -X --exclude-from",
        optional="--time",
    ),
    Command(
        "df",
        "-a --all -h --human-readable -H --si -i --inodes -k -l --local --no-sync -P --portability"
        " --total -T --print-type -v",
        valued="-B --block-size -t --type -x --exclude-type",
        optional="--output",
        asks={"--sync": "writes what the system has not written yet"},
    ),
    takes_words(
        "date",
        "--debug --resolution -R --rfc-email -u --utc --universal",
        valued="-d --date --rfc-3339",
        files="-f --file -r --reference",
        optional="-I --iso-8601",
        asks={"-s --set": "sets the clock"},
        effect=_date,
    ),
    shows("basename", "-a --multiple -z --zero", valued="-s --suffix"),
    shows("dirname", "-z --zero"),
    shows(
        "readlink",
        "-f --canonicalize -e --canonicalize-existing -m --canonicalize-missing -n --no-newline -q"
        " --quiet -s --silent -v --verbose -z --zero",
    ),
    shows(
        "realpath",
        "-e --canonicalize-existing -m --canonicalize-missing -L --logical -P --physical -q --quiet"
        " -s --strip --no-symlinks -z --zero",
        valued="--relative-to --relative-base",
    ),
    shows("seq", "-w --equal-width", valued="-f --format -s --separator", digits=True),
    _DIGEST,
    replace(_DIGEST, name="b2sum", valued="-l --length"),
    replace(
        _DIGEST,
        name="cksum",
        flags="-c --check --tag --untagged -z --zero --ignore-missing --quiet --status --strict -w"
        " --warn --debug",
        valued="-a --algorithm -l --length",
    ),
    reads_files("sum", "-r -s --sysv"),
    reads_files(
        "comm",
        "-1 -2 -3 --check-order --nocheck-order --total -z --zero-terminated",
        valued="--output-delimiter",
    ),
    reads_files(
        "join",
        "-i --ignore-case --check-order --nocheck-order --header -z --zero-terminated",
        valued="-a -e -j -o -t -v -1 -2",
    ),
    reads_files("paste", "-s --serial -z --zero-terminated", valued="-d --delimiters"),
    reads_files("fold", "-b --bytes -s --spaces", valued="-w --width", digits=True),
    reads_files(
        "fmt",
        "-c --crown-margin -s --split-only -t --tagged-paragraph -u --uniform-spacing",
        valued="-p --prefix -w --width -g --goal",
        digits=True,
    ),
    reads_files("expand", "-i --initial", valued="-t --tabs", digits=True),
    reads_files("unexpand", "-a --all --first-only", valued="-t --tabs", digits=True),
    reads_files(
        "pr",
        "-a --across -c --show-control-chars -d --double-space -F -f --form-feed -J --join-lines -m"
        " --merge -r --no-file-warnings -t --omit-header -T --omit-pagination -v --show-nonprinting"
        "",
        valued="--columns -D --date-format -h --header -l --length -N --first-line-number -o"
        " --indent -w --width -W --page-width",
        optional="-e --expand-tabs -i --output-tabs -n --number-lines -s --separator -S"
        " --sep-string",
        digits=True,
    ),
    Command(
        "shuf",
        "-e --echo -r --repeat -z --zero-terminated",
        valued="-i --input-range -n --head-count",
        files="--random-source",
        asks={"-o --output": "writes a file"},
    ),
    shows(
        "numfmt",
        "--debug --grouping -z --zero-terminated",
        valued="-d --delimiter --field --format --from --from-unit --invalid --padding --round"
        " --suffix --to --to-unit",
        optional="--header",
        digits=True,
    ),
    reads_files("tsort"),
    reads_files("base64, base32", "-d --decode -i --ignore-garbage", valued="-w --wrap"),
    reads_files(
        "basenc",
        "-d --decode -i --ignore-garbage --base64 --base64url --base32 --base32hex --base16"
        " --base2msbf --base2lsbf --z85",
        valued="-w --wrap",
    ),
    shows("printenv", "-0 --null"),
    shows(
        "id",
        "-a -Z --context -g --group -G --groups -n --name -r --real -u --user -z --zero",
    ),
    reads_files(
        "who",
        "-a --all -b --boot -d --dead -H --heading --ips -l --login --lookup -m -p --process -q"
        " --count -r --runlevel -s --short -t --time -T -w --mesg -u --users --message --writable"
        "",
    ),
    shows(
        "uname",
        "-a --all -s --kernel-name -n --nodename -r --kernel-release -v --kernel-version -m"
        " --machine -p --processor -i --hardware-platform -o --operating-system",
    ),
    shows("nproc", "--all", valued="--ignore"),
    shows("pathchk", "-p -P --portability"),
    shows("tty", "-s --silent --quiet"),
    shows("whoami, groups, users, arch, sleep, factor, logname, hostid, yes, expr"),
)
