"""bash runs exactly the commands that are read: lines are built, read, and given to a real bash.

No program can start, as there is none on `PATH`: bash calls a function in place of each command,
and the function writes down the words.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from support.patience import PATIENCE_S
from toolbus_toolkits.shell.reading import Word, read_line

ENVIRONMENT = {"HOME": "/home/u", "X": "x1", "SPACED": "a b", "STAR": "*", "LANG": "C.UTF-8"}
# Names that begin with "no" fail, so that lists and conditions go either way. bash writes line by
# line: without newlines the words of one command are written at once.
FUNCTION = """() { local words; printf -v words '%s\\177' "$@"; words=${words//$'\\n'/$'\\036'}
printf '%s\\0' "$words" >&$LOG; case $1 in no*) return 1;; esac; }"""


def run(line: str, folder: Path) -> list[list[str]]:
    """Return the words of each command that bash runs for a line."""
    reader, low = os.pipe()
    # Not a descriptor that a line may name.
    writer = fcntl.fcntl(low, fcntl.F_DUPFD, 100)
    os.close(low)
    process = subprocess.Popen(
        ["/bin/bash", "--noprofile", "--norc", "-c", line],
        cwd=folder,
        env={
            **ENVIRONMENT,
            "PATH": "/nonexistent",
            "LOG": str(writer),
            "BASH_FUNC_command_not_found_handle%%": FUNCTION,
        },
        pass_fds=[writer],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(writer)
    # It ends when the last process in the background has ended.
    with open(reader, "rb") as log:
        written = log.read()
    process.wait(timeout=PATIENCE_S)
    text = written.decode(errors="surrogateescape").replace("\x1e", "\n")
    records = text.split("\0")[:-1]
    return [record.split("\x7f")[:-1] for record in records]


def fits(words: Sequence[Word], values: Sequence[str]) -> bool:
    """Whether a command with these words may run with these values."""
    if not words:
        return not values
    first, *rest = words
    if first.value is not None and not first.is_pattern:
        return bool(values) and values[0] == first.value and fits(rest, values[1:])
    if first.is_pattern or first.is_split:
        least = 1 if first.value is not None else 0
        return any(fits(rest, values[end:]) for end in range(least, len(values) + 1))
    return bool(values) and values[0].startswith(first.prefix) and fits(rest, values[1:])


LETTERS = st.text("ab1./-_=:@%^+,#é", min_size=1, max_size=3)
EXPANSIONS = st.sampled_from(["$X", "${X}", "$SPACED", "$STAR", "$y", "$?", "${y:-b}", "$((1+2))"])
UNQUOTED = st.one_of(
    LETTERS.map(lambda text: text.lstrip("#-=~") or "a"),
    EXPANSIONS,
    st.sampled_from(["\\ ", "\\$", "\\\\", "\\'", '\\"', "\\*", "*", "?", "[a]", "~"]),
    st.text('ab"\\$`*{,}~ \n#;&|é', max_size=4).map(lambda text: f"'{text}'"),
    st.sampled_from([r"$'a\tb\'c\x41'", r"$'\\'"]),
)
# Braces beside quotes are not read.
BRACED = st.sampled_from(["{a,b}", "a{1..3}b", "a{b,c{d,e}}{f,}", "{03..1}*", "a,b..{}", "{a}{b"])


@st.composite
def double_quoted(draw: st.DrawFn, commands: st.SearchStrategy[str]) -> str:
    escaped = st.sampled_from(['\\"', "\\$", "\\\\", "\\a", "\\`", "'", "it's"])
    plain = st.text("ab *?{},~#;|\n", max_size=4)
    inner = st.one_of(plain, escaped, EXPANSIONS, commands.map(lambda line: f"$( {line})"))
    return '"' + "".join(draw(st.lists(inner, max_size=3))) + '"'


@st.composite
def words(draw: st.DrawFn, commands: st.SearchStrategy[str]) -> str:
    substitution = st.one_of(
        commands.map(lambda line: f"$( {line})"),
        commands.map(lambda line: f"<( {line})"),
        st.just("`NAME b`"),
    )
    piece = st.one_of(UNQUOTED, UNQUOTED, UNQUOTED, double_quoted(commands), substitution)
    joined = st.lists(piece, min_size=1, max_size=3).map("".join)
    return draw(st.one_of(joined, joined, joined, BRACED))


@st.composite
def simple_commands(draw: st.DrawFn, commands: st.SearchStrategy[str]) -> str:
    assignment = st.sampled_from(["A=1 ", "B='2 3' ", "A=$X:~ ", "C= ", "D+=$y "])
    redirection = st.sampled_from([">out", "2>&1", "<in", "> out", "&>>out", "2>&-", "<<<'a b'"])
    parts = draw(st.lists(st.one_of(words(commands), words(commands), redirection), max_size=4))
    name = draw(st.sampled_from(["NAME", "NAME''", '"NAME"', "\\NAME", "!NAME"]))
    blank = draw(st.sampled_from([" ", "  ", "\t", " \\\n "]))
    # A file that it reads must be there.
    prefix = draw(st.sampled_from(["", "", "", ">in ", "time ", "2>&1 "]))
    return prefix + "".join(draw(st.lists(assignment, max_size=2))) + blank.join([name, *parts])


def compound(commands: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return lines whose commands all run, whatever they do."""
    one = simple_commands(commands)
    separator = st.sampled_from([";", "\n", " & ", " ; ", "\n\n# a 'comment\n", ";# b\n"])
    here_document = st.sampled_from(
        [
            "NAME <<E\na $X 'b\nE\n",
            "NAME <<'E' | NAME a\n$(b) `\nE\n",
            "NAME <<-E\n\ta\n\tE\n",
            'NAME <<E\n"a$(NAME ")" \')\' $X)\\" `NAME "b"` $(NAME # )\n)\nE\n',
            "NAME <<E\n\\$(b) $(case c in d) ;; *) NAME;; esac)\nE\n",
        ]
    )
    return st.one_of(
        one,
        st.tuples(commands, separator, commands).map("".join),
        st.tuples(one, st.sampled_from(["|", " |& ", "|\n"]), one).map("".join),
        one.map(lambda line: f"! {line}"),
        one.map(lambda line: f"NAME && {line}"),
        one.map(lambda line: f"noNAME || {line}"),
        commands.map(lambda line: f"( {line}\n)"),
        commands.map(lambda line: f"{{ {line}\n}} >out"),
        commands.map(lambda line: f"if NAME; then {line}\nfi"),
        commands.map(lambda line: f"if noNAME; then :; else {line}\nfi"),
        commands.map(lambda line: f"until NAME\ndo :; done; {line}"),
        commands.map(lambda line: f"for v in a; do {line}\ndone"),
        commands.map(lambda line: f"case a in b) :;; a|c) {line}\n;; esac"),
        commands.map(lambda line: f"[[ a == a && ! -f /x ]]; {line}"),
        here_document,
    )


NO_COMMANDS = st.just("NAME")
LINES = st.recursive(simple_commands(NO_COMMANDS), compound, max_leaves=6)


def with_names(line: str) -> str:
    """Give each command a name of its own."""
    pieces = line.split("NAME")
    return pieces[0] + "".join(f"c{number}{piece}" for number, piece in enumerate(pieces[1:]))


# Compared with the text alone, these change what is a word, an operator or a reserved word.
TOKENS = [
    *"'\"\\$`()<>&|;#{}!*?~=-@:,%^+[]1 \t\n",
    *("$(", "<(", ">(", "&&", "||", "|&", ";;", "$'", "$((", "))", "((", "${", "\\\n", "<<", "<<<"),
    *("{ ", " }", "[[ ", " ]]", "[ ", " ]", "if ", "then ", "fi", "else ", "do ", "done", "esac"),
    *("for v in ", "case x in ", "x) ", "in ", "time ", "time -p", "! ", "function ", "coproc "),
    *("A=", "A+=1 ", "a[0]=", "2>", "{fd}>", "<&-", ">&2", "<>", ">|", "<<E\n", "\nE\n", "<<'E'"),
    *("$X", "$SPACED", '"$X"', "$@", "{a,b}", "{1..3}", "c8", "no9", "c8#c9", "é", '\\"', "`c8`"),
]
SEEDS = [
    "c1 'a b' \"c $X d\" e\\ f | c2 && c3; c4 & c5",
    "( c1; c2 ) | { c3; c4; } > out",
    "if no1; then :; elif c2; then c3; else c4; fi",
    "for v in a b; do c1 $v; done; case x in x) c2;; *) c3;; esac",
    "c1 <<E\nbody $X\nE\nc2 <<'F' | c3\n`$(\nF\nc4",
    "c1 \"$(c2 'x' | c3)\" $(c4 $(c5)) `c6 x` <(c7)",
    "A=1 B='2 3' c1 > out 2>&1 < in",
    "c1 # c2\nc3 \\\n a; time -p c4; ! c5",
    "c1 \"$(c2 <<'E'\nq `x` $(y)\nE\n)\" {a,b}c ~/x A=~",
    "[[ a == b ]] && c1; [ -n a ] || c2",
    "c1 <<E\n\"$(c2 \")\" 'x' $X) `c3 a`' \\$(c4)\nE\nc5",
]


@st.composite
def mutated_lines(draw: st.DrawFn) -> str:
    line = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 4))):
        index = draw(st.integers(0, len(line)))
        removed = draw(st.sampled_from([0, 0, 1, 2]))
        line = line[:index] + draw(st.sampled_from(["", *TOKENS])) + line[index + removed :]
    return line


def check_same_commands(line: str, folder: Path) -> None:
    """Every command that is read runs once, with the words that are read."""
    reading = read_line(line, ENVIRONMENT)
    # The grammar of tree-sitter does not know everything that bash does; hypothesis fails where too
    # many lines are left out.
    assume(reading.faults != ("it is not understood as a command line of bash",))
    assert not reading.faults, (line, reading.faults)
    (folder / "in").touch()
    left = run(line, folder)
    for command in reading.commands:
        if not command.words or command.words[0].value in {":", "[["}:
            continue
        values = next((found for found in left if fits(command.words, found)), None)
        assert values is not None, (line, command, left)
        left.remove(values)
    assert not left, (line, reading.commands)


def check_no_other_command(line: str, folder: Path) -> None:
    """Every command that runs is among those that are read, if the line has no fault."""
    reading = read_line(line, ENVIRONMENT)
    if reading.faults:
        return
    for values in run(line, folder):
        assert any(fits(command.words, values) for command in reading.commands), (line, values)


def checked(examples: int, *, same: bool = False) -> settings:
    return settings(
        max_examples=examples,
        derandomize=same,  # what a soak run finds is no fault of another change
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        deadline=None,
    )


# The same lines each time, but for other texts where hypothesis sees other modules loaded.
@checked(300, same=True)
@given(line=LINES.map(with_names))
@example(line="( c0\n\\c1\n)")
@example(line="c0 1$( c1)")
def test_bash_runs_exactly_the_commands_that_are_read(line: str, tmp_path: Path) -> None:
    check_same_commands(line, tmp_path)


@checked(500, same=True)
@given(line=mutated_lines())
def test_bash_runs_no_command_that_is_not_read(line: str, tmp_path: Path) -> None:
    check_no_other_command(line, tmp_path)


@pytest.mark.soak
@checked(20_000)
@given(line=LINES.map(with_names))
def test_bash_runs_exactly_the_commands_that_are_read_of_many_lines(
    line: str, tmp_path: Path
) -> None:
    check_same_commands(line, tmp_path)


@pytest.mark.soak
@checked(100_000)
@given(line=mutated_lines())
def test_bash_runs_no_command_that_is_not_read_of_many_lines(line: str, tmp_path: Path) -> None:
    check_no_other_command(line, tmp_path)
