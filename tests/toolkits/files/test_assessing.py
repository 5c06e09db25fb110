"""What an assessment says of a call before it runs, and what permissions decide by it."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from toolbus import Assessment, Permissions, Rule, ToolContext, Toolkit
from toolbus.permissions.decision import JudgedCall
from toolbus.permissions.modes import MODES
from toolbus.permissions.rule import RuleBehavior
from toolbus_toolkits.files import Files, assessing
from toolbus_toolkits.files.indexing import files_read
from toolbus_toolkits.files.reached import failure
from toolbus_toolkits.files.text import token_of

DECISIONS = {
    "read": ("allow", "allow", "allow", "allow", "allow"),
    "edit": ("ask", "allow", "deny", "allow", "deny"),
    "immune": ("ask", "ask", "deny", "allow", "deny"),
    "deny": ("deny", "deny", "deny", "deny", "deny"),
}
"""In the modes default, accept_edits, explore, bypass and dont_ask."""

# `@` is the folder that has the roots `work` and `more`.
CALLS = {
    "read": """
        read notes.txt
        read ./src/../notes.txt
        read @/work/notes.txt
        read @/more/other.txt
        read in/app.py
        read missing.txt
        read missing/x
        read notes.txt/x
        read src
        read loop
        read fifo
        read .bashrc
        read .git/config
        read bin/tool
        get notes.txt
        list .
        list .git
        list .ssh
        list missing
        glob *.pem
        grep x
        grep x src
        grep x .git
        watch .
    """,
    "edit": """
        write notes.txt
        write new.txt
        write new/folder/x.py
        write in/app.py
        write @/more/new.txt
        write notes.txt/x
        write loop
        write fifo
        write missing-link
        edit notes.txt
        edit missing.txt
        insert src/app.py
        put notes.txt
        put new.bin
    """,
    "immune": """
        read .env
        read ./src/../.env
        read @/work/.env
        read link.txt
        read .env.link
        read .ssh/known_hosts
        read key.pem
        read kept/x
        get link.txt
        grep x .env
        grep x link.txt
        grep x .ssh
        write .env
        write link.txt
        write .env.link
        write .ssh/new
        write .bashrc
        write .git/hooks/pre-commit
        write .vscode/tasks.json
        write rc
        write bin/tool
        write bin
        write kept/new/x
        edit .env
        insert .envrc
        put policy.toml
    """,
    "deny": """
        read ../outside.txt
        read /etc/passwd
        read /etc/missing
        read out/outside.txt
        read out.txt
        read src/../../outside.txt
        read @/work2/x
        get /dev/zero
        list ..
        list out
        glob * /
        grep x /etc
        watch /
        write ../new.txt
        write out/new.txt
        write out.txt
        write gone.txt
        edit /etc/hostname
        insert /proc/self/mem
        put /dev/sda
    """,
}
CASES = [
    (kind, line.strip())
    for kind, lines in CALLS.items()
    for line in lines.split("\n")
    if line.strip()
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two roots, `work` and `more`, with secrets and links, beside files that are outside."""
    place = tmp_path.resolve()
    for folder in ("work/src/deep", "work/.ssh", "work/.git", "work/bin", "work/kept", "more"):
        (place / folder).mkdir(parents=True)
    for name in (
        *("work/notes.txt", "work/src/app.py", "work/src/deep/x.py", "work/.env", "work/.bashrc"),
        *(
            "work/.ssh/known_hosts",
            "work/key.pem",
            "work/.git/config",
            "work/bin/tool",
            "more/a.md",
        ),
        *("work/kept/x", "more/other.txt", "outside.txt"),
    ):
        (place / name).write_text("x\n")
    links = {"in": "src", "out": "..", "out.txt": "../outside.txt", "link.txt": ".env"}
    links |= {".env.link": "notes.txt", "loop": "loop", "rc": ".bashrc", "gone.txt": "../new.txt"}
    links |= {"missing-link": "src/new.py"}
    for name, target in links.items():
        (place / "work" / name).symlink_to(target)
    os.mkfifo(place / "work" / "fifo")
    return place


@pytest.fixture
def files(place: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.setenv("PATH", f"{place}/work/bin{os.pathsep}{os.environ['PATH']}")
    return Files(
        place / "work",
        further_roots=[place / "more"],
        additional_dangerous_directories=["kept"],
    )


def arguments_of(tool: str, words: list[str]) -> dict[str, Any]:
    """Return the arguments of a call: a path, after a pattern for `glob` and `grep`."""
    arguments: dict[str, Any] = {}
    if tool in ("glob", "grep"):
        arguments["pattern"] = words[0]
        words = words[1:]
    if words:
        arguments["path"] = words[0]
    further: dict[str, dict[str, Any]] = {
        "write": {"text": "new\n"},
        "edit": {"old_text": "x", "new_text": "y"},
        "insert": {"line": 1, "text": "new\n"},
    }
    return arguments | further.get(tool, {})


async def run(toolkit: Toolkit, tool: str, arguments: dict[str, Any]) -> Any:
    return (await toolkit.execute(ToolContext(), tool, arguments)).value


class Judge:
    """Assesses calls of a toolkit, and decides about them by permissions."""

    def __init__(self, toolkit: Toolkit, place: Path) -> None:
        self._toolkit = toolkit
        self._place = place

    async def assess(self, line: str, patterns: tuple[str, ...] = ()) -> Assessment:
        tool, *words = line.replace("@", str(self._place)).split()
        arguments = arguments_of(tool, words)
        return await self._toolkit.assess(ToolContext(), tool, arguments, patterns)

    async def decide(self, line: str, permissions: Permissions) -> str:
        name = f"files.{line.split()[0]}"
        tool = SimpleNamespace(name=name, own_name=name, owner="", issuer="", alias="")
        agent = SimpleNamespace(name="agent", issuer="", alias="")
        who = SimpleNamespace(caller=agent, on_behalf_of=None, forwarded_for=(), is_hosted=False)
        call = cast(JudgedCall, SimpleNamespace(tool=tool, arguments={}, context=who))
        assessment = await self.assess(line, permissions.patterns(call))
        return permissions.decide(call, assessment).behavior


async def test_each_call_gets_its_decision_in_each_mode(files: Files, place: Path) -> None:
    judge = Judge(files, place)
    wrong = []
    for kind, line in CASES:
        found = tuple([await judge.decide(line, Permissions(mode)) for mode in MODES])
        rule = Rule(behavior="allow", tool="files")
        ruled = await judge.decide(line, Permissions("default", [rule]))
        wanted = "allow" if kind in ("read", "edit") else found[0]
        if found != DECISIONS[kind] or ruled != wanted:
            wrong.append(f"{line}: {'/'.join(found)}, ruled {ruled}: {await judge.assess(line)}")
    assert not wrong, "\n".join(wrong)


# Rules, and the decision in the mode `default` for calls of each line.
RULES = [
    (
        ["allow src/**"],
        {
            "allow": ["write src/app.py", "write in/app.py", "write @/work/src/a/b", "edit in/new"],
            "ask": ["write notes.txt", "write @/more/src/x", "write srcx/y", "write .env"],
        },
    ),
    (
        ["allow *.py", "deny deep"],
        {
            "allow": ["write src/app.py", "write missing-link"],
            "ask": ["write @/more/x.py", "write src/x.PY"],
            "deny": ["write src/deep/x.py", "read in/deep/x.py", "list src/deep", "grep x src"],
        },
    ),
    (
        ["deny in/**", "ask link.txt", "allow @/more/**", "deny @/work/.ssh"],
        {
            "deny": [
                "read in/app.py",
                "write in/../in/x",
                "list in",
                "list .ssh",
                "read in/app.py/x",
            ],
            "ask": ["write link.txt", "read link.txt"],
            "allow": ["write @/more/x", "write @/more/new/x", "read src/app.py", "list ."],
        },
    ),
    (
        ["allow **", "deny ../**"],  # which is no pattern
        {"deny": ["read notes.txt", "write notes.txt", "list .", "grep x"]},
    ),
    (["allow [a", "allow ~root/x"], {"ask": ["write [a", "write notes.txt", "write root/x"]}),
    (
        ["deny *.md"],
        {
            "deny": ["read a.md", "grep x @/more", "read missing/../a.md"],
            "allow": ["grep x", "list @/more", "glob *.md @/more"],
        },
    ),
    (
        ["deny src/**"],
        {
            "deny": [
                "grep x",
                "glob *.py",
                "list src",
                "list in",
                "grep x src/app.py",
                "grep x in",
            ],
            "allow": ["list .", "glob *.pem", "watch bin", "grep x bin", "grep x notes.txt"],
        },
    ),
    # A watch tells what comes too.
    (
        ["deny to/come/**", "deny *.py"],
        {"deny": ["watch .", "watch @/more"], "allow": ["watch src", "list .", "glob *.pem"]},
    ),
    (["deny in/*.py"], {"deny": ["grep x in"], "allow": ["grep x src", "glob * in"]}),
    # What is left out of a search is not read by it.
    (["deny .env", "deny *.pem"], {"allow": ["grep x", "list .", "glob *"], "deny": ["read .env"]}),
]


@pytest.mark.parametrize(("rules", "wanted"), RULES, ids=lambda value: str(value)[:30])
async def test_rules_cover_what_a_call_reaches(
    files: Files, place: Path, rules: list[str], wanted: dict[str, list[str]]
) -> None:
    judge = Judge(files, place)
    made = []
    for rule in rules:
        behavior, pattern = rule.replace("@", str(place)).split(" ", 1)
        made.append(Rule(behavior=cast(RuleBehavior, behavior), tool="files", match=pattern))
    permissions = Permissions(rules=made)
    found: dict[str, list[str]] = {decision: [] for decision in wanted}
    for lines in wanted.values():
        for line in lines:
            found.setdefault(await judge.decide(line, permissions), []).append(line)
    assert found == wanted


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("write new/deep/x.py", "makes `new/deep/x.py`, with 1 line, and the folder `new/deep`"),
        ("write notes.txt", "replaces 1 line of `notes.txt` by 1"),
        ("write missing-link", "makes `missing-link` (which is `src/new.py`), with 1 line"),
        ("insert src/app.py", "adds 1 line to `src/app.py`"),
        ("edit @/more/other.txt", "replaces 1 line of `@/more/other.txt` by 1"),
        ("write src/new/x", "makes `src/new/x`, with 1 line, and the folder `src/new`"),
        ("edit src/deep/x.py", "would fail for `src/deep/x.py`: src/deep/x.py exists, and you"),
        ("edit missing.txt", "would fail for `missing.txt`: "),
        ("write fifo", "would fail for `fifo`: it is a FIFO, not a file"),
        ("put src", "would fail for `src`, which is no file"),
        ("put notes.txt", "replaces `notes.txt`, which has 2 bytes"),
        ("write link.txt", "`link.txt` (which is `.env`)"),
        ("read link.txt", "reads `link.txt` (which is `.env`), which may hold passwords"),
        ("read /etc/passwd", "'/etc/passwd' is outside"),
        ("read missing", "reads `missing`"),
        ("grep x", "searches `.`, with files that rules are about (`deep`): `path` and `glob`"),
    ],
)
async def test_the_message_says_what_a_call_does(
    files: Files, place: Path, line: str, message: str
) -> None:
    for path in ("notes.txt", "src/app.py", f"{place}/more/other.txt"):
        await run(files, "read", {"path": path})
    assessment = await Judge(files, place).assess(line, ("deep",))
    assert message.replace("@", str(place)) in assessment.message


async def test_the_preview_is_the_diff_that_the_call_returns(files: Files, place: Path) -> None:
    await run(files, "read", {"path": "notes.txt"})
    assessment = await Judge(files, place).assess("write notes.txt")
    changed = await run(files, "write", {"path": "notes.txt", "text": "new\n"})
    assert assessment.preview == changed["diff"]
    assert assessment.preview.endswith("-x\n+new")


async def test_an_assessment_shows_nothing_of_secrets_that_were_not_read(
    files: Files, place: Path
) -> None:
    (place / "work" / ".env").write_text("x\ny=1\n")
    token = token_of(b"x\ny=1\n")

    async def assessed(tool: str, **arguments: Any) -> Assessment:
        return await files.assess(ToolContext(), tool, {"path": ".env", **arguments})

    guesses = [await assessed("write", text="", token=guess) for guess in (token, token_of(b"z"))]
    assert guesses[0] == guesses[1]
    await run(files, "read", {"path": ".env", "limit": 1})
    guesses += [await assessed("edit", old_text=text, new_text="") for text in ("y = 1", "y = 2")]
    assert guesses[2] == guesses[3]
    guesses.append(await assessed("insert", line=1, text="z"))
    assert {guess.preview for guess in guesses} == {""}
    await run(files, "read", {"path": ".env"})
    assert (await assessed("write", text="x\n", token=token)).preview.endswith("-y=1")


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("src/app.py", "src/**"),
        ("in/deep/x.py", "src/deep/**"),
        ("new/a [1]/x.py", r"new/a \[1\]/**"),
        ("notes.txt", "/notes.txt"),
        ("{x}.txt", r"/\{x\}.txt"),
        ("@/more/sub/x", "@/more/sub/**"),
        ("@/more/a.md", "@/more/a.md"),
    ],
)
async def test_a_suggestion_covers_the_folder_of_a_file(
    files: Files, place: Path, path: str, pattern: str
) -> None:
    judge = Judge(files, place)
    arguments = {"path": path.replace("@", str(place)), "text": "x"}
    (rule,) = (await files.assess(ToolContext(), "write", arguments)).suggestions
    assert rule.match == pattern.replace("@", str(place))
    assessment = await files.assess(ToolContext(), "write", arguments, (rule.match,))
    assert assessment.parts == ((rule.match,),)
    for other in ("write other.txt", "write @/more/other.txt", "write src.txt/x"):
        assert (await judge.assess(other, (rule.match,))).parts == ((),)


async def test_what_no_rule_allows_has_no_suggestion(files: Files, place: Path) -> None:
    for line in ("write .bashrc", "write src", "write /etc/x"):
        assessment = await Judge(files, place).assess(line)
        assert assessment.suggestions == ()


async def test_a_tree_that_is_too_large_is_covered_by_each_pattern(
    files: Files, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assessing, "_LISTING_S", 0.0)
    for line in ("grep x", "glob *.py", "watch ."):
        assessment = await Judge(files, place).assess(line, ("nothing/**",))
        assert assessment.matches == ("nothing/**",)
        assert "too many files" in assessment.message


@pytest.mark.parametrize(
    "path",
    [
        "a\0b",
        "x" * 300,
        "x/" * 2000,
        "é\u202e\ufeff.txt",
        "large.bin",
        "fifo",
        "socket",
        "src",
        "loop/x",
        "[a" * 300,
        "*",
        "~/x",
        "a\nb",
        "/proc/self/root/etc/passwd",
    ],
    ids=lambda path: repr(path)[:20],
)
async def test_a_bad_path_is_judged_as_any_other(files: Files, place: Path, path: str) -> None:
    """No assessment fails, waits, or reads much; a rule that covers all covers it."""
    with (place / "work" / "large.bin").open("wb") as file:
        file.truncate(2**30)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place / "work" / "socket"))
        for tool in ("read", "get", "list", "write", "edit", "insert", "put"):
            arguments = {"path": path, **arguments_of(tool, [])}
            assessment = await files.assess(ToolContext(), tool, arguments, ("**",))
            assert assessment.source == "tool"
            assert assessment.matches == ("**",) or assessment.behavior == "deny"
            assert assessment.message.isprintable()
            assert len(assessment.message) < 600


async def test_names_that_are_no_text_are_covered(place: Path) -> None:
    folder = os.fsencode(place / "work" / "src")
    os.close(os.open(folder + b"/\xff.md", os.O_CREAT | os.O_WRONLY))
    judge = Judge(Files(place / "work"), place)
    assert (await judge.assess("grep x", ("src/*.md", "*.rst"))).matches == ("src/*.md",)


async def test_a_glob_is_judged_as_it_finds(place: Path) -> None:
    (place / "work" / "secr\xe9ts").mkdir()
    (place / "work" / "secr\xe9ts" / "x.txt").touch()
    files = Files(place / "work")
    for pattern in ("secr?ts/*", "secr[!x]ts/*", "secr\xe9ts/*"):
        found = await run(files, "glob", {"pattern": pattern})
        assert found["paths"] == ["secr\xe9ts/x.txt"]
        assessment = await files.assess(
            ToolContext(), "glob", {"pattern": pattern}, ("secr\xe9ts/**", "src/**")
        )
        assert assessment.matches == ("secr\xe9ts/**",)


async def test_where_links_lead_outside_is_not_revealed_by_rules(files: Files, place: Path) -> None:
    (place / "secret").mkdir()
    (place / "link").symlink_to("secret")
    assessment = await Judge(files, place).assess("read @/link/x", (f"{place}/secret/**", "/**"))
    assert assessment.behavior == "deny"
    assert assessment.matches == ("/**",)


async def test_a_root_that_has_vanished_is_reported(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    files = Files(root)
    root.rmdir()
    for line in ("read x", "write x", "list .", "grep x"):
        assessment = await Judge(files, tmp_path).assess(line, ("x", "deep"))
        assert assessment.source == "tool"
        assert "would fail" in assessment.message


async def test_one_caller_starts_few_listings_at_a_time(
    files: Files, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[int] = []
    listing = files_read

    async def counted(*args: Any, **options: Any) -> Any:
        running.append(running[-1] + 1 if running else 1)
        try:
            return await listing(*args, **options)
        finally:
            running.append(running[-1] - 1)

    monkeypatch.setattr(assessing, "files_read", counted)
    judge = Judge(files, place)
    await asyncio.gather(*(judge.assess("grep x", ("*.md",)) for _ in range(8)))
    assert max(running) == 2


async def test_a_mistake_in_a_glob_is_reported_in_place_of_rules(files: Files, place: Path) -> None:
    arguments = {"pattern": "x", "glob": "[a"}
    assessment = await files.assess(ToolContext(), "grep", arguments, ("*.md",))
    assert assessment.matches == ()
    assert "the call would fail" in assessment.message


async def test_a_tree_that_cannot_be_listed_is_covered_by_each_pattern(
    files: Files, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolbus_toolkits.files.ripgrep._path_of_rg", _no_rg)
    assessment = await Judge(files, place).assess("grep x", ("nothing",))
    assert assessment.matches == ("nothing",)


def _no_rg() -> str:
    raise failure("not_installed", "there is none")
