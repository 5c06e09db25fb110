"""What is said of a call before it runs, and what permissions decide by it."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from toolbus import Assessment, Permissions, Rule, ToolContext, ToolFailed, Toolkit
from toolbus.permissions.modes import MODES
from toolbus.permissions.permit import JudgedCall
from toolbus.permissions.rule import RuleBehavior
from toolbus_toolkits.files import Files, assessing

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
    arguments |= {
        "write": {"text": "new\n"},
        "edit": {"old_text": "x", "new_text": "y"},
        "insert": {"line": 1, "text": "new\n"},
    }.get(tool, {})
    return arguments


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
        said = await self.assess(line, permissions.patterns(call))
        return permissions.decide(call, said).behavior


async def test_each_call_gets_its_decision_in_each_mode(files: Files, place: Path) -> None:
    judge = Judge(files, place)
    wrong = []
    for kind, line in CASES:
        if line.split()[0] not in {tool.name for tool in files.tools}:
            continue
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
            "allow": ["list .", "glob *.pem", "grep x bin", "grep x notes.txt"],
        },
    ),
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
