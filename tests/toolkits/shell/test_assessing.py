"""What an assessment says about a whole line: where it reads and writes, and what rules cover."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolbus import Assessment
from toolbus_toolkits.shell import matching, path_resolver
from toolbus_toolkits.shell.assessing import assess_line
from toolbus_toolkits.workspace import Roots, SensitivePaths

HOME = "home"
PATTERNS = ("rm:*", "touch:*", "make:*", "> *", "*")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A working directory with symlinks, beside a home."""
    place = tmp_path.resolve()
    for folder in ("work/src/deep", "work/docs", "work/conf", "work/empty", "home/.ssh", "other"):
        (place / folder).mkdir(parents=True)
    for name in (
        "work/a.txt",
        "work/src/b.py",
        "work/.env",
        "work/conf/.env",
        "home/.ssh/id_rsa",
        "other/c.txt",
    ):
        (place / name).write_text("x")
    (place / "work/docs/secret.txt").symlink_to("../.env")
    (place / "way").symlink_to("work/src")
    (place / "work/out").symlink_to("../other")
    (place / "work/loop").symlink_to("loop")
    (place / "work/rc").symlink_to("../home/.bashrc")
    return place / "work"


def assess(line: str, work: Path, **variables: str) -> Assessment:
    return assess_line_with(line, work, *PATTERNS, **variables)


def assess_line_with(line: str, work: Path, *patterns: str, **variables: str) -> Assessment:
    return assess_line(
        line,
        directory=str(work),
        environment={"HOME": str(work.parent / HOME), "PATH": "/usr/bin:/bin", **variables},
        roots=Roots([work]),
        sensitive=SensitivePaths(),
        patterns=patterns,
    )


def kind(line: str, work: Path, **variables: str) -> str:
    """Return `read`, `edit`, `ask` or `immune`."""
    found = assess(line, work, **variables)
    if found.read_only:
        return "read"
    if found.immune:
        return "immune"
    return "edit" if found.within_workdir else "ask"


KINDS = {
    "read": """
        cat a.txt out/c.txt src/*.py
        cat < a.txt > /dev/null 2>&1
        cat a.txt 2> /dev/fd/2
        x=1
        x=$(cat a.txt); echo "$x"
        F=a.txt; wc "$F"
        DIR=$(pwd); ls "$DIR"
        for FILE in a.txt src/b.py; do wc -l "$FILE"; done
        while read -r LINE; do echo "$LINE"; done < a.txt
        readonly F=a.txt; stat "$F"
        f=a.txt; export f; ls
        LC_ALL=C sort a.txt
        cd src && cat b.py
        grep -r x src
        rg x src
        rg x conf
        ls .env docs ~/.ssh
        cat conf/*
    """,
    "edit": """
        touch src/new 'a b'
        rm -rf src out/../work/docs
        rm src/*
        rm ./*/b.py
        echo x > log && cat log
        mv docs src
        rm -rf src/*
        cd src && rm ../a.txt
        cd src; touch deep/x
        cd src && cd deep && touch ../../x
        echo x > new && cat a.txt >> src/b.py
        cp a.txt src && touch src/b.py
        cp -r src copy
        mkdir -p new/deep; touch new/deep/x
    """,
    "ask": """
        touch ../x
        touch out/x
        touch loop
        touch "$X"
        touch src/$X
        touch $(cat a.txt)
        echo x > out/x
        echo x > "$X"
        cat "$X"
        cat loop
        cat < "$X"
        cat < /dev/tcp/127.0.0.1/80
        PATH=. ls
        PATH=.
        http_proxy=x
        FOO=1 ls
        X=1 ls
        export F=1; ls
        F=1; export F; ls
        local -x F=1; ls
        LANGUAGES=1; TMPDIR=src; ls
        cd src; rm ../a.txt
        cd src && ls; rm ../a.txt
        cd src && ls || rm ../a.txt
        cd src && ls & rm ../a.txt
        cd ../way && cd .. && touch x
        cd ../way/.. && touch x
        cd .. && touch x
        cd && touch x
        cd - && touch x
        cd "$X" && touch x
        cd "$X" && cat a.txt
        cd src || touch ../x
        cd out && touch ../x
        cd missing; touch ../work/../x
        while ls; do touch x; cd ..; done
        for x in 1 2; do cp -r out empty; done
        rm */c.txt
        rm out/*
        ln -s .. way && touch way/x
        ln -s / way && cat way/etc/hostname
        cp -a out way && touch way/x
        mv out way; touch way/x
        cp -r src/. out
        rm -f "$X"
        no-such-command x
        no-such-command x > new
    """,
    "immune": """
        cat .env
        cat ./docs/../.env
        cat .e*
        cat .[e]nv
        cat docs/secret.txt
        cat docs/*
        cat *x* .env
        cat ~/.ssh/$X
        cat "$X" .env
        cat "$X/.env"
        cat ~root/.ssh/x
        rg --hidden x
        rg -uu x
        cat < .env
        sort a.txt < docs/secret.txt
        grep -r x .
        grep -r x docs
        grep -r x conf
        grep -r x ~
        cp -r docs copy
        no-such-command --file=.env
        no-such-command if=.env
        no-such-command -d@.env
        no-such-command -fdocs/secret.txt
        no-such-command a:docs/secret.txt
        cd ~/.ssh && cat known
        echo x > .env
        echo x > rc
        echo x > "$HOME/.profile"
        touch .git/x
        cd src && echo x > ../.vscode/x
        cp a.txt docs/secret.txt
        rm -rf .
        rm -rf ..
        rm -rf src/../
        rm -rf "$PWD"
        rm -rf *
        rm -rf ./*
        rm -rf ./*/
        rm -rf */*
        rm -rf .*
        rm -rf [!.]*
        rm -rf ?*
        rm -rf ~
        rm -rf ~/*
        rm -rf "$HOME"/..
        rm -rf /
        rm -rf /*
        rm -rf /usr
        rm -rf "$X"
        rm -fr "$X"/*
        rm -rf $X/src
        rm --recurs $X
        rm -rf src/$X
        cd "$X" && rm -rf *
        cd "$X" && rm -rf ../..
        cd src && rm -rf ..
        find . -delete
        xargs rm -rf < a.txt
        mv ~ src/x
        rmdir ..
        cat "abc
        touch x; cat .env
        cat *.txt > rc
    """,
}
CASES = [(line.strip(), wanted) for wanted, text in KINDS.items() for line in text.split("\n")]


@pytest.mark.parametrize(("line", "wanted"), [case for case in CASES if case[0]])
def test_a_line_is_judged_by_where_it_reads_and_writes(work: Path, line: str, wanted: str) -> None:
    assert kind(line, work) == wanted, assess(line, work)


def test_a_directory_that_is_searched_elsewhere_is_not_known(work: Path) -> None:
    assert kind("cd src && touch x", work, CDPATH="/") == "ask"


def test_a_copy_into_a_folder_counts_by_its_name_there(work: Path) -> None:
    other = work.parent / "other"
    (other / ".gitconfig").write_text("x")
    (other / "policy.toml").write_text("x")
    (other / "c").mkdir()
    (other / "c" / ".vscode").mkdir()
    (work / "c").mkdir()
    (work / "docs" / "c.txt").symlink_to("../../home/x")
    assert kind("cp ../other/.gitconfig .", work) == "immune"
    assert kind("cp ../other/.git* .", work) == "immune"
    assert kind("cp ../other/p* .", work) == "immune"
    assert kind("cp -r ../other/c .", work) == "immune"
    assert kind("cp ../other/c.txt docs", work) == "ask"
    assert kind("cp ../other/c.txt src", work) == "edit"


def test_a_tree_that_is_too_large_is_asked_about_and_hides_nothing(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        (work / "src" / f"{number}.txt").touch()
    monkeypatch.setattr(path_resolver, "_MAX_ENTRIES", 5)
    assert kind("grep -r x src", work) == "ask"
    assert "too many files" in assess("cat src/*", work).message
    assert kind("cat src/* > rc", work) == "immune"
    assert kind("rm -rf src/* ~", work) == "immune"


def test_rules_see_each_command_and_each_file_that_is_written(work: Path) -> None:
    found = assess("cat a.txt | sort; touch x; make -j4 > log", work)
    assert found.matches == ("touch:*", "make:*", "> *", "*")
    assert found.parts == (("touch:*", "*"), ("make:*", "*"), ("> *", "*"))
    found = assess("PATH=. make", work)
    assert "make:*" in found.matches
    assert found.parts == (("*",),)
    assert assess("LC_ALL=C make 2>&1", work).parts == (("make:*", "*"),)
    # A command that is not known may run its words; `git` and `echo` do not.
    assert "rm:*" in assess("no-such-wrapper rm x", work).matches
    assert "rm:*" not in assess("echo rm x", work).matches
    # A setting may name a program.
    assert "rm:*" in assess("git -c alias.x='!rm -r y' x", work).matches
    assert "rm:*" not in assess("git commit -m 'rm x'", work).matches
    assert assess("cat a.txt", work).parts == ()


@pytest.mark.parametrize(
    "line",
    [
        "ls; " * 9_999 + "ls",
        "ls " + "a " * 500_000,
        "touch " + "a " * 30_000,
        "env " * 20 + "ls",
        "no-such-command " + " ".join(f"'a; b; c{number}'" for number in range(400)),
        "(" * 5_000,
        "'",
        "ls \0",
        "ls \ud800",
        "$X a",
    ],
    ids=lambda line: line[:12],
)
def test_what_cannot_be_read_matches_every_rule_and_no_allow(work: Path, line: str) -> None:
    found = assess(line, work)
    assert (found.behavior, found.immune, found.matches) == ("ask", True, PATTERNS)
    assert found.parts == ((),)
    assert len(found.message) < 1_000


def test_a_message_says_what_is_asked_and_why(work: Path) -> None:
    found = assess("cat a.txt && rm -rf src && no-such-command x", work)
    assert found.message == (
        "`rm -rf src`: it deletes files; `no-such-command x`: `no-such-command` is not known."
    )
    assert found.preview.splitlines()[0] == "cat a.txt: only reads"
    found = assess("touch x; cat .env", work)
    assert found.message.startswith("`cat .env`: `.env` may hold passwords and keys of a service;")
    found = assess("; ".join(f"touch {'y' * 500}{number}" for number in range(99)), work)
    assert found.message.endswith("and 95 more commands.")
    hidden = assess("; ".join([*["touch x"] * 99, "rm -rf src", *["touch x"] * 99]), work)
    assert hidden.message.startswith("`rm -rf src`: it deletes files; `touch x`")
    assert len(found.message) < 1_000
    assert len(found.preview) < 20_000


def test_rules_are_suggested_for_what_is_asked_about(work: Path) -> None:
    found = assess("cat a.txt; make test; no-such-command; rm 'b c' > log", work)
    patterns = [rule.match for rule in found.suggestions]
    assert patterns == ["make test:*", "no-such-command:*", r"rm b\ c", r"> log"]
    assert assess("make; cat .env", work).suggestions == ()
    # Where these would not be enough, the line itself is.
    for line in (
        "FOO=1 make",
        "export A=1; make test",
        'make "$X"\ntouch "$X"',
        "a; b; c; d; e; f",
    ):
        (rule,) = assess(line, work).suggestions
        assert rule.match is not None
        assert assess_line_with(line, work, rule.match).parts == ((rule.match,),), rule
    assert len(assess("a; b; c; d; e", work).suggestions) == 5


def test_no_more_than_its_text_is_suggested_for_what_another_command_starts(work: Path) -> None:
    lines = {
        "npx jest -t a": ["npx jest -t a", "jest -t a"],
        "sudo apt-get update": ["sudo apt-get update", "apt-get update"],
        "tmux new -s x": ["tmux new -s x", "new -s x", "x"],
        "uv run - <<E\nx\nE": ["uv run - <<E\\\nx\\\nE"],
        "timeout 5 npm test": ["npm test:*"],
    }
    found = {line: [rule.match for rule in assess(line, work).suggestions] for line in lines}
    assert found == lines


def test_a_limit_of_commands_counts_those_that_others_start(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "MAX_PARTS", 3)
    assert kind("nice ls", work) == "read"
    assert kind("nice ls; nice ls", work) == "immune"
