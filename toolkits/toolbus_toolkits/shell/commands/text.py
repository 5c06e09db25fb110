"""Commands that search, compare and convert text, and that show it.

Source: the manual pages and `--help` of GNU grep 3.8, diffutils 3.8 and binutils 2.40, ripgrep
14.1, the_silver_searcher 2.2.0, jq 1.6 and 1.7, yq 3.1 of Kislyuk and 4 of Farah, less 590,
util-linux 2.38, GNU libc 2.36, file 5.44, xxd 2022-01-14, GNU bc 1.07.1, tree 2.1.0, plocate 1.1
and mlocate 0.26.
"""

from __future__ import annotations

from dataclasses import replace

from toolbus_toolkits.shell.commands.table import (
    Arguments,
    Command,
    Effect,
    reads_files,
    takes_words,
)

__all__ = ["ROWS"]

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
