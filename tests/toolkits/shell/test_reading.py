"""What a command line is read as, and what is not read."""

from __future__ import annotations

import pytest

from toolbus_toolkits.shell.reading import Reading, SimpleCommand, Word, read_line

ENVIRONMENT = {
    "HOME": "/home/u",
    "X": "x1",
    "SPACED": "a b",
    "STAR": "*",
    "EMPTY": "",
    "_": "/usr/bin/env",
    "RANDOM": "4",
    "PATH": "/bin:/usr/bin",
    "LANG": "C.UTF-8",
}


def shown_word(word: Word | None) -> str:
    """Return a value in angle brackets if it has blanks or none, and marks for what is unknown."""
    if word is None:
        return "-"
    if word.value is None:
        return f"{word.prefix}?" + ("*" if word.is_split else "")
    is_plain = word.value and not any(mark in word.value for mark in " \t\n")
    return (word.value if is_plain else f"<{word.value}>") + ("%" if word.is_pattern else "")


def shown(command: SimpleCommand) -> str:
    parts = [f"{found.name}={shown_word(found.value)}" for found in command.assignments]
    parts += map(shown_word, command.words)
    parts += [
        found.operator + shown_word(found.target or found.text) for found in command.redirections
    ]
    return " ".join(parts)


def shown_reading(reading: Reading) -> str:
    return " / ".join([*map(shown, reading.commands), *(f"!{fault}" for fault in reading.faults)])


READ = {
    # Words and quotes.
    "ls": "ls",
    "": "",
    " \n\t # only a comment": "",
    "  ls   -l\t a  ": "ls -l a",
    "/bin/rm x": "/bin/rm x",
    r"l\s 'a b' \"c": 'ls <a b> "c',
    "l''s": "ls",
    """ls "a"'b'c""": "ls abc",
    """ls '' "" a''""": "ls <> <> a",
    r"""ls "a\"b\\c\$d\e" """: 'ls a"b\\c$d\\e',
    r"ls $'a\tb\'c\x41\101\u0042'": "ls <a\tb'cAAB>",
    "ls 'a\nb'": "ls <a\nb>",
    'ls "a\\\nb"': "ls ab",
    "ls \\\n  -l": "ls -l",
    "ls a\\\n -l": "ls a -l",
    "ls a#b # c 'd": "ls a#b",
    "curl http://x/?a=b#c": "curl http://x/?a=b#c%",
    "date +%s": "date +%s",
    "ls é 'ü'": "ls é ü",
    "echo if then { } in ! time": "echo if then { } in ! time",
    "echo a=b =c ^ @ % : , -": "echo a=b =c ^ @ % : , -",
    "git show HEAD@{1} HEAD~2^{tree}": "git show HEAD@{1} HEAD~2^{tree}",
    "a 👩\u200d💻 'b\u00adc \u200b\u00a0d' 🏴\U000e0067\U000e007f \U0001fae8": (
        "a 👩\u200d💻 <b\u00adc \u200b\u00a0d> 🏴\U000e0067\U000e007f \U0001fae8"
    ),
    # Patterns, braces, the home directory.
    "ls *.py a? [ab]c [!a]*": "ls *.py% a?% [ab]c% [!a]*%",
    r"""ls \* "*" '[a]' a[ ]""": "ls * * [a] a[ ]",
    "mkdir a/{b,c}/{d,}": "mkdir a/b/d a/b/ a/c/d a/c/",
    "ls {1..3} {03..1} {a,b{c,d}} {} {x} *.{a,b}": ("ls 1 2 3 03 02 01 a bc bd {} {x} *.a% *.b%"),
    "ls ~ ~/x a~ 'x'~ \"~\" \\~": "ls /home/u /home/u/x a~ x~ ~ ~",
    "ls ~root ~+ ~-": "ls ? ? ?",
    "A=~ B=~/x:~/y ls --d=~/x": "A=/home/u B=? ls --d=~/x",
    # Variables.
    "ls $X ${X} \"$X\" a${X}b '$X'": "ls x1 x1 x1 ax1b $X",
    'ls $SPACED "$SPACED" $STAR $EMPTY': "ls ?* <a b> ?* ?*",
    'ls $y "$y" a$y a"$y"b': "ls ?* ? a?* a?",
    "ls $_ $RANDOM $SHLVL $PWD": "ls ?* ?* ?* ?*",
    'ls $? $$ $# $! $1 ${12} "$@" "$*"': "ls ? ? ? ?* ?* ?* ?* ?",
    "ls ${#y} ${y:-d} ${y%.*} ${y##*/} ${y//a/b} ${y:1:2} ${y^^}": "ls ?" + " ?*" * 6,
    "ls $((1 + 2)) a$": "ls ? a$",
    "IFS=3; ls $((1 + 2)) $?": "IFS=3 / ls ?* ?*",
    "X=2; ls $X": "X=2 / ls ?*",
    "ls $X; X=2": "ls ?* / X=2",
    "for X in a; do ls $X; done": "X=? / ls ?*",
    "for IFS in a; do ls $X; done": "IFS=? / ls ?*",
    "read X; ls $X $HOME": "read X / ls ?* /home/u",
    "export X=2; ls $X": "export X=2 / ls ?*",
    "cd /a; ls $PWD $HOME": "cd /a / ls ?* /home/u",
    ". ./f; ls $X": ". ./f / ls ?*",
    "IFS=1; ls $X": "IFS=1 / ls ?*",
    "A=1 B='2 3' C= ls D=4": "A=1 B=<2 3> C=<> ls D=4",
    "A=1": "A=1",
    "A+=1": "A=?",
    "A=$y": "A=?",
    # Lists, pipelines, groups.
    "a\n\\b": "a / b",
    "( a\n \\b\n)": "a / b",
    "a; b & c && d || e | f |& g\nh": "a / b / c / d / e / f / g / h",
    "a;b&c&&d||e|f|&g": "a / b / c / d / e / f / g",
    "a &&\n  b |\n c": "a / b / c",
    "# c\na # d\n\nb": "a / b",
    "! a && ! b; !c": "a / b / !c",
    "(a; (b)) && { c; { d; }; }": "a / b / c / d",
    "if a; then b; elif c; then d; else e; fi": "a / b / c / d / e",
    "while a; do b; done; until c; do d; done": "a / b / c / d",
    "for i in a $(b) *; do c $i; done": "b / c ?*",
    'for i; do a "$i"; done': "a ?",
    "case $y in a|b*) c;; (d) e;; *) f; esac": "c / e / f",
    "time a; time -p b | c; a | time d": "a / b / c / a / time d",
    "time A=1 a": "A=1 a",
    "a | b\ntime c": "a / b / c",
    "f() { a; }; f x; b": "a / b",
    "f() { a $1; }; f > out": "a ?* / >out",
    # Redirections.
    "a >b 2>>c <d 2>&1 >&- <>e >|f": "a >b >>c <d >&- >&-- <>e >|f",
    "a &>b": "a &>b",
    "a &>>b >&c": "a &>>b >&c",
    "> a b c > d e": "b c e >a >d",
    "a 2 >b": "a 2 >b",
    "a2>b": "a2 >b",
    "> a": ">a",
    "{ a; } > b 2>&1": "a / >b >&-",
    "for i in a; do b; done < c": "b / <c",
    "a <<< 'b c'": "a <<<<b c>",
    "a > $(b)": "a >?* / b",
    # Here-documents.
    "a <<E\nb c\nE\nd": "a <<<b c\n> / d",
    "a <<'E' | b\n$(c) `d` \\\nE\ne": "a <<<$(c) `d` \\\n> / b / e",
    'a <<-"E"\n\tb\n\tE\n': "a <<-<b\n>",
    "a <<A <<B; c\n1\nA\n2\nB\nd": "a <<<1\n> <<<2\n> / c / d",
    "a <<E\n$X ${y} \\$ \\` $5\nE": "a <<x1 ?",
    'a <<E\n"\\"\' $X $(b ")" "$X") `c` $y\nE\nd': ('a <<"\\"\' x1 ? / b ) x1 / c / d'),
    "a <<E\n$(b # )\n) $(case c in d) e;; esac)\nE": "a <<? / b / e",
    "a <<E\nE": "a <<<>",
    "while a; do b; done <<E\nc\nE": "a / b / <<<c\n>",
    'git commit -m "$(cat <<\'E\'\nIt\'s `a` "b"\nE\n)" && b': (
        'git commit -m ? / cat <<<It\'s `a` "b"\n> / b'
    ),
    'python -c "print(1 << 2)"': "python -c <print(1 << 2)>",
    # Substitutions.
    'a $(b $(c)) "d$(e "f")g"': "a ?* d? / b ?* / c / e f",
    'a `b c` "`d`"': "a ?* ? / b c / d",
    "a <(b | c) >(d)": "a ? ? / b / c / d",
    "a x<(b)": "a x? / b",
    "A=$(b) c": "A=? c / b",
    "a $(< b)": "a ?* / <b",
    # Builtins in the forms that evaluate nothing.
    '[ -f a ] && [ "$y" = b ] && [ $? -eq 0 ]': "[ -f a ] / [ ? = b ] / [ ? -eq 0 ]",
    "test ! -d a": "test ! -d a",
    "[[ -n $y && $y == a* || ! -f b ]]": "[[ -n ? && ? == a* || ! -f b ]]",
    "[[ $? -eq 0 ]]": "[[ ? -eq 0 ]]",
    "while IFS= read -r -d '' a; do b; done": "IFS=<> read -r -d <> a / b",
    "export A=$y B; unset C; set -euo pipefail; shopt -s nullglob": (
        "export A=?* B / unset C / set -euo pipefail / shopt -s nullglob"
    ),
    "printf '%s' $y; printf a$y": "printf %s ?* / printf a?*",
}

# Each may run what it does not show, or is read in another way by bash, or is not known for sure.
FAULTS = [
    # Names and structure.
    "$y a",
    '"$(a)" b',
    "l* a",
    "{ls,-l}",
    "a[$(b)]=1",
    "a[0]=1 b",
    "A=(b c)",
    "a )",
    "( a",
    "{ a",
    "a }; }",
    "if a; then b",
    "a | | b",
    "a &&",
    "a ;; b",
    "{a; }",
    "time\\\n a",
    "((x = 1))",
    "((a); b)",
    "for ((i = 0; i < 3; i++)); do a; done",
    "coproc a",
    "function f { a; }",
    "f() (a)",
    "ls() { a; }",
    "cd() { a; }",
    "f() { f | f & }; f",
    "f() { a; }; g() { f; }",
    ":(){ :|:& };:",
    "a 'b",
    'a "b',
    "a `b",
    "a $(b",
    "a \\",
    # What evaluates.
    "a $((y))",
    "a $((1 + $y))",
    "a $[1]",
    "a ${!y}",
    "a ${y@P}",
    "a ${y[$(b)]}",
    "a ${y:=b}",
    "a ${y:-$(b)}",
    "a ${y:-`b`}",
    "a ${y#$(b)}",
    "a ${y:z}",
    "a ${y/b/$z}",
    'a $"b"',
    "[[ $y -eq 1 ]]",
    "[[ 'a[$(b)]' -eq 1 ]]",
    "[[ -v 'a[$(b)]' ]]",
    "[[ $y =~ $z ]]",
    "[[ ( -f a ) ]]",
    "[ -v 'a[$(b)]' ]",
    "test -v a",
    "[ $y ]",
    '[ "$y" a ]',
    "command test -v 'a[$(b)]'",
    "builtin command -p read 'a[$(b)]'",
    "printf -v 'a[$(b)]' c",
    "printf $y c",
    'printf "$y" c',
    "read 'a[$(b)]'",
    "read $y",
    "read -a y",
    "declare 'a[$(b)]=1'",
    "declare -i a",
    "typeset a=1",
    "export $y",
    "export 'a[$(b)]=1'",
    "let 'a[$(b)]'",
    "unset 'a[$(b)]'",
    "mapfile -C b a",
    "getopts a y",
    "compgen -W '$(b)'",
    "set -k",
    "set -o posix",
    "set $y",
    "shopt -s extglob",
    "shopt -s expand_aliases",
    "fc -s",
    "RANDOM='a[$(b)]'",
    "export RANDOM='a[$(b)]'",
    "for OPTIND in 'a[$(b)]'; do c; done",
    "PS4='$(b)'; set -x",
    "BASH_ENV=b a",
    "POSIXLY_CORRECT=1",
    # Redirections and here-documents.
    "a {y}> b",
    "a <&-# b",
    "a >",
    "a <<E",
    "a <<E\nb",
    "a <<E\n$(b\nE",
    "a <<E\n$(( $(b) ))\nE",
    "a <<E\n`b \\`c\\``\nE",
    "a <<E\n${y:-$(b)}\nE",
    "a <<E\nb\\\nE\nE",
    "a <<$y\n$y",
    "a <<E'F'\nEF",
    "a $(b <<'E'\nE)\nc\nE\n)",
    "a <<E $(\nb)\nE",
    "a '<<E\nb\nE\n'",
    # Joined lines, letters.
    "a &\\\n& b",
    'a "$\\\n(b)"',
    "a $\\\n(b)",
    "a\\\nb",
    "a `b \\`c\\``",
    "a\rb",
    "a\0b",
    "a\x0bb",
    "a\u00a0b",
    "a \u202eb",
    "a \u200bb",
    "a \\\u00a0b",
    "a 'b\u202ec'",
    "a '\U000e0061'",
    "a \ud800",
    "export LC_ALL=zh_CN.GBK\na é",
    "a $'\\cA'",
    "a $'\\xe9'",
    "a $'\\0'",
    # Braces that are not certain.
    'a {b,"c d"}',
    "a {b,$y}",
    "a {1..1000}",
    "a {b,c}{b,c}{b,c}{b,c}{b,c}{b,c}{b,c}",
    "a {b,{c}",
]

LIMITS = {
    "length": "a" * 65_537,
    "commands": "a;" * 300,
    "calls": "a $(b) " * 300,
    "parentheses": "(" * 1_000_000,
    "fewer parentheses": "(" * 4_000,
    "substitutions": "$(" * 2_000,
    "closed substitutions": "a $(" * 100 + ")" * 100,
    "groups": "( " * 100 + "a" + " )" * 100,
    "quotes": "'" * 100_001,
    "fewer quotes": '"' * 4_001,
    "words": "a " * 30_000,
    "assignments": "A=1 " * 10_000,
    "braces": "a " + "{b," * 1_000 + "}" * 1_000,
    "here-documents": "a <<E\n" * 1_000 + "E\n" * 1_000,
    "lists": "a && " * 500 + "a",
}


@pytest.mark.parametrize(("line", "expected"), READ.items())
def test_a_line_is_read_as_bash_reads_it(line: str, expected: str) -> None:
    assert shown_reading(read_line(line, ENVIRONMENT)) == expected


@pytest.mark.parametrize("line", FAULTS)
def test_what_cannot_be_read_for_sure_is_a_fault(line: str) -> None:
    assert read_line(line, ENVIRONMENT).faults


@pytest.mark.parametrize("line", LIMITS.values(), ids=LIMITS)
def test_a_line_beyond_a_limit_is_a_fault(line: str) -> None:
    assert read_line(line, ENVIRONMENT).faults


def test_letters_depend_on_the_locale() -> None:
    """In GBK the second byte of a letter may be a backslash or a pipe."""
    assert not read_line("ls é", {"LANG": "de_DE.utf8"}).faults
    assert read_line("ls é", {"LANG": "C.UTF-8", "LC_ALL": "zh_CN.GBK"}).faults


@pytest.mark.parametrize(
    "name", ["SHELLOPTS", "BASHOPTS", "BASH_ENV", "POSIXLY_CORRECT", "BASH_FUNC_ls%%"]
)
def test_bash_may_start_in_another_mode(name: str) -> None:
    assert read_line("ls", {name: "a"}).faults


def test_words_and_commands_keep_how_they_are_written() -> None:
    (first, second) = read_line("A=1 ls 'a b' $y >c; rm  x", {}).commands
    assert first.source == "A=1 ls 'a b' $y >c"
    assert [word.source for word in first.words] == ["ls", "'a b'", "$y"]
    assert second.source == "rm  x"
