"""Commands that read, sort, search, compare, convert and show text and names.

Source: the manual pages and `--help` of GNU coreutils 9.1, GNU grep 3.8, diffutils 3.8 and binutils
2.40, ripgrep 14.1, the_silver_searcher 2.2.0, jq 1.6 and 1.7, yq 3.1 of Kislyuk and 4 of Farah,
less 590, util-linux 2.38, GNU libc 2.36, file 5.44, xxd 2022-01-14, GNU bc 1.07.1, tree 2.1.0,
plocate 1.1 and mlocate 0.26.
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

_COREUTILS = with_flags(
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


_GREP = reads_files(
    "grep, egrep, fgrep",
    "-E --extended-regexp -F --fixed-strings -G --basic-regexp -P --perl-regexp -i -y --ignore-case"
    " --no-ignore-case -w --word-regexp -x --line-regexp -z --null-data -s --no-messages -v"
    " --invert-match -V --version --help -b --byte-offset -n --line-number --line-buffered -H"
    " --with-filename -h --no-filename -o --only-matching -q --quiet --silent -a --text -I -r"
    " --recursive -R --dereference-recursive -L --files-without-match -l --files-with-matches -c"
    " --count -T --initial-tab -Z --null -U --binary --no-group-separator",
    valued="-e --regexp -m --max-count --label --binary-files -d --directories -D --devices"
    " --include --exclude --exclude-dir -B --before-context -A --after-context -C --context"
    " --group-separator",
    files="-f --file --exclude-from",
    optional="--color --colour",
    leading=1,
    leading_given_by="-e --regexp -f --file",
    digits=True,
    recursive="-r --recursive -R --dereference-recursive -d --directories",
)

_DIFF = reads_files(
    "diff, colordiff",
    # `-l` gives the result to pr, which only reads.
    "--normal -q --brief -s --report-identical-files -e --ed -n --rcs -y --side-by-side"
    " --left-column --suppress-common-lines -p --show-c-function -t --expand-tabs -T --initial-tab"
    " --suppress-blank-empty -l --paginate -r --recursive --no-dereference -N --new-file"
    " --unidirectional-new-file --ignore-file-name-case --no-ignore-file-name-case -i --ignore-case"
    " -E --ignore-tab-expansion -Z --ignore-trailing-space -b --ignore-space-change -w"
    " --ignore-all-space -B --ignore-blank-lines -a --text --strip-trailing-cr -d --minimal"
    " --speed-large-files --help -v --version -c -u",
    valued="-W --width -F --show-function-line --label --tabsize -x --exclude -S --starting-file -I"
    " --ignore-matching-lines -D --ifdef --line-format --old-line-format --new-line-format"
    " --unchanged-line-format --old-group-format --new-group-format --changed-group-format"
    " --unchanged-group-format --horizon-lines --palette -U -C",
    files="-X --exclude-from --from-file --to-file",
    optional="--context --unified --color",
    # Without `-r` it compares the files of two folders too, and with `-N` each of them.
    recursive="*",
)


def _jq(arguments: Arguments) -> Effect:
    # `--arg NAME VALUE` has two values: the row takes the name, and the value counts as an operand.
    # Then it is not known which operand is the program, so that each is a path.
    reads = arguments.paths()
    if arguments.has("--arg --argjson --rawfile --slurpfile"):
        reads = reads + arguments.operands[:1]
    return Effect(read_only=True, reads=reads)


def _strings(arguments: Arguments) -> Effect:
    # What binutils calls a response file, wherever the word stands.
    for word in arguments.command.words[1:]:
        if (word.value or word.prefix).startswith("@"):
            return Effect(why=f"`{word.source}` is a file with further words")
    return Effect(read_only=True, reads=arguments.paths())


ROWS: tuple[Command, ...] = (
    *_COREUTILS,
    _GREP,
    replace(_GREP, name="rgrep", recursive="*"),
    Command(
        "rg",
        "--auto-hybrid-regex --binary --no-binary --block-buffered -b --byte-offset -s"
        " --case-sensitive --column --no-column -c --count --count-matches --crlf --debug --trace"
        " --files -l --files-with-matches --files-without-match -F --fixed-strings -L --follow"
        " --no-follow --glob-case-insensitive --heading --no-heading -h --help -. --hidden"
        " --no-hidden -i --ignore-case --ignore-file-case-insensitive --include-zero -v"
        " --invert-match --json --line-buffered -n --line-number -N --no-line-number -x"
        " --line-regexp --max-columns-preview --mmap --no-mmap -U --multiline --multiline-dotall"
        " --no-config --no-ignore --no-ignore-dot --no-ignore-exclude --no-ignore-files"
        " --no-ignore-global --no-ignore-messages --no-ignore-parent --no-ignore-vcs --no-messages"
        " --no-require-git --no-unicode -0 --null --null-data --one-file-system -o --only-matching"
        " --passthru -P --pcre2 --pcre2-version -p --pretty -q --quiet -S --smart-case --stats"
        " --stop-on-nonmatch -a --text --trim --type-list -u --unrestricted -V --version --vimgrep"
        " -H --with-filename -I --no-filename -w --word-regexp",
        valued="-A --after-context -B --before-context -C --context --color --colors"
        " --context-separator -d --max-depth --maxdepth --dfa-size-limit -E --encoding --engine"
        " --field-context-separator --field-match-separator -g --glob --iglob -M --max-columns -m"
        " --max-count --max-filesize --path-separator --regex-size-limit -r --replace --sort"
        " --sortr -j --threads -t --type --type-add --type-clear -T --type-not -e --regexp"
        " --pre-glob",
        files="-f --file --ignore-file",
        asks={
            "--pre": "runs a program for each file",
            "--hostname-bin": "runs a program",
            "-z --search-zip": "runs programs that unpack files",
        },
        leading=1,
        leading_given_by="-e --regexp -f --file --files --type-list",
        recursive="*",
    ),
    Command(
        "ag",
        "-c --count --column -f --follow -F --fixed-strings -g -h --help -i --ignore-case -l"
        " --files-with-matches -L --files-without-matches -n --norecurse -o --only-matching -Q"
        " --literal -s --case-sensitive -S --smart-case --stats -t --all-text -u --unrestricted -U"
        " --skip-vcs-ignores -v --invert-match -V --version -w --word-regexp -0 --null --print0"
        " --hidden --nocolor --color --heading --noheading --numbers --nonumbers --group --nogroup"
        " --vimgrep",
        valued="-A --after -B --before -C --context -G --file-search-regex --ignore --ignore-dir"
        " --depth -m --max-count -W --width",
        asks={"--pager": "runs a program"},
        leading=1,
        recursive="*",
    ),
    _DIFF,
    reads_files(
        "cmp",
        "-b --print-bytes -l --verbose -s --quiet --silent --help -v --version",
        valued="-i --ignore-initial -n --bytes",
    ),
    Command(
        "diff3",
        "-A --show-all -e --ed -E --show-overlap -3 --easy-only -x --overlap-only -X -i -m --merge"
        " -a --text --strip-trailing-cr -T --initial-tab --help -v --version",
        valued="-L --label",
        asks={"--diff-program": "runs a program"},
    ),
    reads_files(
        "jq",
        "-n --null-input -e --exit-status -s --slurp -r --raw-output -j --join-output -a"
        " --ascii-output -R --raw-input -c --compact-output -C --color-output -M"
        " --monochrome-output -S --sort-keys --tab --args --jsonargs --seq --stream --stream-errors"
        " --unbuffered --raw-output0 -b --binary -h --help -V --version --build-configuration",
        valued="--arg --argjson --slurpfile --rawfile --indent",
        files="-f --from-file -L",
        leading=1,
        leading_given_by="-f --from-file",
        effect=_jq,
    ),
    Command(
        # Two programs have this name. The row has what neither of them writes with: `-i` and `-s`
        # write files.
        "yq",
        "-r --raw-output -e --exit-status -M -C -n --null-input -P --prettyPrint -h --help",
        asks={"-i --in-place --inplace": "changes its files", "-s --split-exp": "writes files"},
    ),
    Command(
        "less",
        "-a -A -B -c -C -d -e -E -f -F -g -G -i -I -J -K -L -m -M -n -N -q -Q -r -R -s -S -u -U -w"
        " -W -X -V --version --LINE-NUMBERS --RAW-CONTROL-CHARS --chop-long-lines"
        " --quit-if-one-screen --quit-at-eof --no-init --ignore-case",
        asks={
            "-o -O --log-file --LOG-FILE": "writes a file",
            "-k --lesskey-file --lesskey-src --lesskey-content": "may set what it runs",
            "-p --pattern": "gives it commands",
        },
        plus="is a command that it runs",
    ),
    Command(
        "more",
        "-d --silent -f --logical -l --no-pause -c --print-over -p --clean-print -e --exit-on-eof"
        " -s --squeeze -u --plain -h --help -V --version",
        valued="-n --lines",
        digits=True,
        plus="is a command that it runs",
    ),
    reads_files(
        "strings",
        "-a --all -d --data -f --print-file-name -w --include-all-whitespace -o -h --help -v -V"
        " --version",
        valued="-n --bytes -t --radix -T --target -e --encoding -s --output-separator -U --unicode",
        digits=True,
        effect=_strings,
    ),
    Command(
        "iconv",
        "-l --list -c -s --silent --verbose -? --help --usage -V --version",
        valued="-f --from-code -t --to-code",
        asks={"-o --output": "writes a file"},
    ),
    Command(
        "file",
        "--help -v --version -b --brief -i --mime --apple --extension --mime-type --mime-encoding"
        " -k --keep-going -l --list -L --dereference -h --no-dereference -n --no-buffer -N --no-pad"
        " -0 --print0 -r --raw -E",
        valued="-e --exclude --exclude-quiet -F --separator -P --parameter",
        files="-f --files-from",
        asks={
            "-C --compile": "writes a file",
            "-z --uncompress -Z --uncompress-noreport": "runs programs that unpack files",
            "-p --preserve-date": "sets the times of files",
            "-m --magic-file": "may name a file that it compiles",
            "-s --special-files": "reads devices",
        },
    ),
    Command(
        # It compares the beginnings of its options; the row has those that are written in full.
        "xxd",
        "-a -autoskip -b -bits -C -capitalize -d -E -EBCDIC -e -h -help -i -include -p -ps -plain"
        " -postscript -r -revert -u -v -version",
        valued="-c -cols -g -groupsize -l -len -n -name -o -offset -s -seek",
        single_dash=True,
        permutes=False,
        ends_options=False,
        at_most=1,
        beyond="the second operand of `xxd` is a file that it writes",
    ),
    reads_files(
        "hexdump, hd",
        "-b --one-byte-octal -c --one-byte-char -C --canonical -d --two-bytes-decimal -o"
        " --two-bytes-octal -x --two-bytes-hex -v --no-squeezing -h --help -V --version",
        valued="-e --format -n --length -s --skip",
        files="-f --format-file",
        optional="-L --color",
    ),
    reads_files(
        "column",
        "-t --table -d --table-noheadings -e --table-header-repeat -L --keep-empty-lines -J --json"
        " -x --fillrows -h --help -V --version",
        valued="-n --table-name -O --table-order -N --table-columns -l --table-columns-limit -E"
        " --table-noextreme -H --table-hide -R --table-right -T --table-truncate -W --table-wrap -r"
        " --tree -i --tree-id -p --tree-parent -c --output-width -o --output-separator -s"
        " --separator",
    ),
    reads_files("rev", "-h --help -V --version"),
    reads_files(
        "look",
        "-a --alternative -d --alphanum -f --ignore-case -h --help -V --version",
        valued="-t --terminate",
        leading=1,
    ),
    reads_files(
        "bc",
        "-h --help -i --interactive -l --mathlib -q --quiet -s --standard -w --warn -v --version",
    ),
    Command(
        "tree",
        "-a -d -l -f -x -q -N -Q -p -u -g -s -h -D -F -v -t -c -U -r -i -A -S -n -C -X -J --du --si"
        " --inodes --device --noreport --nolinks --prune --dirsfirst --filesfirst --matchdirs"
        " --metafirst --ignore-case --gitignore --fromfile --info --help --version",
        valued="-L -P -I -H -T --filelimit --charset --timefmt --sort",
        files="--gitfile --infofile",
        asks={"-o": "writes a file", "-R": "writes a file in each folder"},
        # `-PI a b` takes both values from the words that follow, so that `--` may be one.
        ends_options=False,
    ),
    takes_words(
        "locate",
        "-A --all -b --basename -c --count -e --existing -i --ignore-case -p --ignore-spaces -0"
        " --null -r --regexp --regex -w --wholename -h --help -V --version",
        valued="-l -n --limit",
        files="-d --database",
    ),
)
