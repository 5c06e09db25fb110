"""Patterns of rules over one command, and the rules that are suggested."""

from __future__ import annotations

from dataclasses import replace

import pytest

from toolbus_toolkits.shell.reading import SimpleCommand, Word, read_line
from toolbus_toolkits.shell.rules import covers, exact_line, matches_any, suggestion


def command(line: str) -> SimpleCommand:
    """Return the only command of a line; `$X` is not known, and may be its name."""
    starts = line.startswith("$X")
    (found,) = read_line(line.replace("$X", "name", 1) if starts else line, {"HOME": "/h"}).commands
    if starts:
        return replace(found, words=(Word("$X", None, is_split=True), *found.words[1:]))
    return found


# Pattern, commands that it covers for sure, commands that it may match too, and others.
PATTERNS = [
    (
        "git status:*",
        [
            "git status",
            "  git  status -s",
            "'git' st''atus",
            "/usr/bin/git status",
            "git status $X",
        ],
        [
            "./git status",
            "git -C a status",
            "git --no-pager status",
            "git $X",
            "$X status",
            "$X",
            "'git status'",
        ],
        ["git", "git statusx", "git stash", "git commit -m status", "gitk status"],
    ),
    (
        "rm:*",
        ["rm", "rm a", "/bin/rm a", r"\rm a", "rm $X", "rm *"],
        ["./rm a", "/opt/x/rm", "~/rm", "'rm a'", "$X"],
        ["rmdir a", "rm-x", "echo rm", "git rm a"],
    ),
    ("/bin/rm:*", ["rm", "/usr/bin/rm x"], ["../rm"], ["rmdir"]),
    ("./run.sh:*", ["./run.sh", "./run.sh a"], ["run.sh", "/opt/run.sh"], ["./run.sh.x"]),
    (
        "rm -rf:*",
        ["rm -rf a"],
        ["rm -fr a", "rm -r -f a", "rm a -rvf", "rm $X", "rm -r $X"],
        ["rm -r a", "rm a", "rm -f a"],
    ),
    (
        "git push --force *",
        ["git push --force", "git push --force origin"],
        ["git push origin --force", "git push --forc x", "git -C a push --force"],
        ["git push --forced", "git push", "git --force pull"],
    ),
    (
        "make test",
        ["make test", "make  'test'"],
        ["make $X", "make $X test", "$X", "make te*", "'make test'"],
        ["make", "make test x", "make 'test '"],
    ),
    (
        "docker * logs",
        ["docker compose logs", "docker $X logs", "docker a b logs"],
        ["docker $X", "docker compose $X", "docker 'a logs'"],
        ["docker logs", "docker compose logs web", "docker compose up"],
    ),
    ("foo \\*", ["foo '*'"], ["foo $X", "foo *"], ["foo x", "foo a*"]),
    ("foo a\\\\b", ["foo 'a\\b'"], [], ["foo ab"]),
    ("foo 'a  b' c", ["foo 'a  b' c"], ["foo a b c"], ["foo ab c"]),
    ("FOO=1 foo:*", ["FOO=1 foo x"], ["FOO=$X foo"], ["foo", "FOO=2 foo"]),
    ("*", ["a", "a b", "$X", "A=1 b"], [], []),
    (":*", [], ["$X"], ["a"]),
]


@pytest.mark.parametrize(
    ("pattern", "sure", "may", "none"), PATTERNS, ids=lambda text: str(text)[:20]
)
def test_a_pattern_is_sure_for_an_allow_and_strict_for_a_deny(
    pattern: str, sure: list[str], may: list[str], none: list[str]
) -> None:
    lines = {line: command(line) for line in (*sure, *may, *none)}
    assert [line for line in lines if covers(pattern, lines[line])] == sure
    assert [line for line in lines if matches_any(pattern, lines[line])] == [*sure, *may]


def test_an_assignment_is_no_part_of_what_a_rule_allows() -> None:
    assert not covers("make:*", command("PATH=. make"))
    assert matches_any("make:*", command("PATH=. make"))


def test_a_command_that_is_not_known_may_run_its_words() -> None:
    found = command("wrapper -x rm a")
    assert matches_any("rm:*", found, everywhere=True)
    assert not matches_any("rm:*", found)
    assert matches_any("rm:*", command("wrapper 'rm a'"), everywhere=True)
    assert not matches_any("rm:*", command("wrapper 'farm a'"), everywhere=True)


def test_further_words_may_be_any() -> None:
    words = (Word("rm", "rm"), Word("-f", "-f"))
    found = SimpleCommand(words, takes_more=True)
    assert covers("rm:*", found)
    assert not covers("rm -f", found)
    assert matches_any("rm -f /", found)


def test_a_pattern_of_many_wildcards_takes_little_time() -> None:
    found = command(f"foo {'ab' * 20_000} $X")
    for pattern in ("*a" * 2_000, "* *" * 1_000 + "x", "'" * 4_000, "\\" * 4_000):
        covers(pattern, found)
        matches_any(pattern, found, everywhere=True)


SUGGESTED = [
    ("git commit -m x", "git commit:*"),
    ("npm run build", "npm run:*"),
    ("make", "make:*"),
    ("make -j4", "make:*"),
    ("/usr/bin/make test", "make test:*"),
    ("pytest tests/test_a.py", "pytest:*"),
    ("./run.sh a", "./run.sh a:*"),
    # The name alone would allow too much.
    ("git -C a push", "git -C a push"),
    ("git", "git"),
    ("python -c 'print(1)'", "python -c print(1)"),
    ("bash run.sh", "bash run.sh"),
    ("python3.12 run.py", "python3.12 run.py"),
    ("luajit run", "luajit run"),
    (".venv/bin/python x.py", ".venv/bin/python x.py"),
    ("/opt/x/bash run.sh", "/opt/x/bash run.sh"),
    ("nodemon --exec x", "nodemon --exec x"),
    ("yarn workspace a add b", "yarn workspace a add b"),
    # The program is what it reads.
    (".venv/bin/python -", ""),
    ("python3 -u -", ""),
    ("uv run pytest", "uv run pytest"),
    ("adb shell ls", "adb shell ls"),
    ("docker compose exec web sh", "docker compose exec web sh"),
    ("docker container run x", "docker container run x"),
    ("cmake -E rm x", "cmake -E rm x"),
    ("git stash", "git stash"),
    # Of some programs the third word says what is done.
    ("docker compose up -d", "docker compose up:*"),
    ("gh pr create --fill", "gh pr create:*"),
    ("git worktree add x", "git worktree add:*"),
    ("curl https://example.org", "curl https://example.org"),
    ("sudo ls", "sudo ls"),
    ("rm a", "rm a"),
    ("touch $X", ""),
    ("sed 'a*' 'b c' \"d'e\"", "sed a\\* b\\ c d\\'e"),
    # What is known only when the line runs is in no text.
    ("python $X", ""),
    ("curl *", ""),
    ("$X a", ""),
    ("FOO=1 make", ""),
    ("foo *", "foo:*"),
    ("foo $X", "foo:*"),
]


def test_two_words_are_suggested_or_the_text_itself() -> None:
    found = {line: suggestion(command(line), is_exact=False) for line, _ in SUGGESTED}
    assert found == dict(SUGGESTED)


def test_a_suggestion_covers_its_command_and_no_files_of_others() -> None:
    for line in (
        "rm 'b c'",
        "rm '*'",
        r"mv 'a\b' '\"c\"'",
        'touch "it\'s" x',
        "'./a b' c",
        "'a b'",
    ):
        for is_exact in (True, False):
            pattern = suggestion(command(line), is_exact=is_exact)
            assert covers(pattern, command(line)), pattern
            assert not covers(pattern, command("rm x")), pattern


def test_the_pattern_of_a_line_covers_no_other_line() -> None:
    lines = ["a; b", "a\nb", "a b", "a *", "a '*'", "a '\\*'", "a \tb", "a \\\tb"]
    assert len({exact_line(line) for line in lines}) == len(lines)
    assert exact_line("a" * 1_001) == exact_line("a '\u200b'") == ""
    for line in ("rm\nx", "rm *; ls"):
        assert not covers(exact_line(line), command("rm x")), line


def test_a_line_that_repeats_a_name_more_often_than_is_compared_is_matched() -> None:
    assert matches_any("rm -x:*", command("tool " + "rm " * 3_000), everywhere=True)
    assert not matches_any("rm -x:*", command("tool " + "rm " * 30), everywhere=True)
    assert not matches_any("rm -x:*", command("tool " + "a " * 3_000), everywhere=True)
