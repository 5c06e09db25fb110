"""`grep` and `glob` of the toolkit `files` find what `rg` finds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from toolbus import ToolContext
from toolbus.untrusted_text import one_line
from toolbus_toolkits.files import Files, searching

_FOLDERS = (".git", ".svn", ".hg", ".bzr", ".jj", ".sl")
_BARE = ("--no-config", "--hidden", "--null", "--crlf", *(f"--glob=!{name}" for name in _FOLDERS))
_SECRET = {".env", "keys/server.pem", "src/.aws/config"}
_LINE = re.compile(rb"(.+?)\0([0-9]+)([:-])(.*)", re.DOTALL)

_FILES: dict[str | bytes, bytes] = {
    ".gitignore": b"build/\n*.log\n!keep.log\nforgotten.py\n",
    ".git/config": b"import of git\n",
    ".env": b"IMPORT=secret import\n",
    "keys/server.pem": b"import of a key\n",
    "src/.aws/config": b"import of a cloud\n",
    ".hidden/notes.txt": b"an import, hidden\n",
    "build/out.py": b"import ignored\n",
    "src/build/deep/out.py": b"import ignored\n",
    "src/forgotten.py": b"import ignored\n",
    "a.log": b"import ignored\n",
    "keep.log": b"import kept\n",
    "src/.ignore": b"skipped.*\n",
    "src/skipped.txt": b"import ignored\n",
    "src/app.py": b"import os\nimport sys\n\n\n\ndef main():\n    return 'Import'\n# import\n",
    "src/deep/er/util.py": b"from os import path\n\nclass A:\n    pass\n",
    "src/deep/er/page.ts": b"import { a } from 'b'\n\xc3\xa9t\xc3\xa9\n",
    "src/[x]/y{z}.py": b"import x\n",
    "docs/readme.md": b"# Title\n\nno final line end: import",
    "empty.txt": b"",
    "crlf.txt": b"import one\r\nother\r\nimport two\r\n",
    "utf8-bom.txt": b"\xef\xbb\xbfimport with a mark\n",
    "utf16.txt": "import of UTF-16: é\nother\n".encode("utf-16"),
    "utf32.txt": "import of UTF-32\n".encode("utf-32"),
    "nul.bin": b"import\n\0\0import\n",
    "late.txt": b"import before\n" + b"zz\n" * 100_000 + b"\0import\nimport\n",
    "a:1:b.txt": b"import of a name with colons\n",
    "-dash.txt": b"import of an option\n",
    "--": b"import of the end of options\n",
    "new\nline.txt": b"import of two lines\n",
    "re\rturn.txt": b"import of a return\n",
    "with space .txt": b"import of spaces\n",
    "esc\x1b[31m.txt": b"import of a colour\n",
    b"latin-\xe9\xff.txt": b"import of bytes\n",
    b"n" * 251 + b".txt": b"import of a long name\n",
    ".0123456789abcdef.part": b"import of a draft\n",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    outside = tmp_path_factory.mktemp("outside")
    (outside / "far.py").write_text("import of outside\n")
    for name, data in _FILES.items():
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_bytes(data)
    (root / "out").symlink_to(outside)
    (root / "in").symlink_to("src")
    (root / "linked.py").symlink_to("src/app.py")
    (root / "broken.py").symlink_to("nowhere")
    os.mkfifo(root / "pipe.py")
    return root


@pytest.fixture(scope="module")
def crlf_tree(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same files, whose lines end with CRLF."""
    root = tmp_path_factory.mktemp("crlf") / "tree"
    shutil.copytree(tree, root, symlinks=True, ignore=shutil.ignore_patterns("pipe.py"))
    for name, data in _FILES.items():
        if data.isascii() and 0 not in data and b"\r" not in data and "ignore" not in str(name):
            path = os.path.join(os.fsencode(root), os.fsencode(name))
            Path(os.fsdecode(path)).write_bytes(data.replace(b"\n", b"\r\n"))
    return root


def _bare(root: str | Path, *arguments: str) -> bytes:
    """Return what rg writes."""
    rg = shutil.which("rg", path=sysconfig.get_path("scripts")) or "rg"
    done = subprocess.run([rg, *_BARE, *arguments, "./"], cwd=root, capture_output=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def _name(data: bytes) -> str:
    return one_line(os.fsdecode(data.removeprefix(b"./")))


def _expected(names: set[str]) -> set[str]:
    return {name for name in names if name not in _SECRET and not name.endswith(".part")}


async def _call(root: str | Path, tool: str, **arguments: Any) -> Any:
    return (await Files(root).execute(ToolContext(), tool, arguments)).value


_PATTERNS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"pattern": "import"}, ("import",)),
    ({"pattern": "IMPORT", "ignore_case": True}, ("-i", "IMPORT")),
    ({"pattern": r"^import\b"}, (r"^import\b",)),
    ({"pattern": "é|caf"}, ("é|caf",)),
    ({"pattern": "-dash|--|colons"}, ("-e", "-dash|--|colons")),
    ({"pattern": "nowhere to be found"}, ("nowhere to be found",)),
    ({"pattern": "import", "type": "py"}, ("-t", "py", "import")),
    ({"pattern": "import", "glob": "*.py"}, ("-g", "*.py", "import")),
    ({"pattern": "import", "glob": "!*.py"}, ("-g", "!*.py", "import")),
    ({"pattern": "import", "glob": "src/**/*.{py,ts}"}, ("-g", "src/**/*.{py,ts}", "import")),
    ({"pattern": "import", "glob": "./src/*.py"}, ("-g", "/src/*.py", "import")),
    ({"pattern": "os\\nimport", "multiline": True}, ("-U", "--multiline-dotall", "os\\nimport")),
    (
        {"pattern": "def.*Import", "multiline": True},
        ("-U", "--multiline-dotall", "def.*Import"),
    ),
    ({"pattern": "import$"}, ("import$",)),
    ({"pattern": "^$"}, ("^$",)),
    ({"pattern": r"one$|\s$"}, (r"one$|\s$",)),
    ({"pattern": "[^:z]$"}, ("[^:z]$",)),
    *(
        ({"pattern": pattern, "multiline": True}, ("-U", "--multiline-dotall", pattern))
        for pattern in ("sys\n{2,}def", "path\n\nclass", r"^class A:$\n^ +pass$", r"sys\\n|A:[\n]?")
    ),
    ({"pattern": "x"}, ("x",)),
]


@pytest.mark.parametrize(("arguments", "bare"), _PATTERNS)
async def test_grep_finds_the_files_lines_and_counts_of_rg(
    tree: Path, arguments: dict[str, Any], bare: tuple[str, ...]
) -> None:
    found = await _call(tree, "grep", **arguments)
    names = {_name(name) for name in _bare(tree, "-l", *bare).split(b"\0")[:-1]}
    assert set(found["matches"]) == _expected(names)
    assert len(found["matches"]) == len(set(found["matches"]))

    found = await _call(tree, "grep", **arguments, output="count")
    counts = re.findall(rb"(?s)\./(.+?)\0([0-9]+)\r\n", _bare(tree, "-c", *bare))
    expected = {_name(name): int(count) for name, count in counts}
    assert dict(line.rsplit(":", 1) for line in found["matches"]) == {
        name: str(expected[name]) for name in _expected(set(expected))
    }

    found = await _call(tree, "grep", **arguments, output="content", context=2, limit=1000)
    lines = _bare(tree, "-n", "--no-heading", "-H", "-C2", "--sort=path", *bare)
    # What rg says of a file that is binary from some byte on has other words.
    shown = [line for line in found["matches"] if line != "--" and not line.startswith("late.txt")]
    assert sorted(shown) == sorted(_shown_lines(lines))


@pytest.mark.parametrize(("arguments", "bare"), _PATTERNS)
async def test_grep_finds_the_same_where_lines_end_with_crlf(
    tree: Path, crlf_tree: Path, arguments: dict[str, Any], bare: tuple[str, ...]
) -> None:
    found = await _call(crlf_tree, "grep", **arguments, output="content", limit=1000)
    lines = _shown_lines(_bare(tree, "-n", "--no-heading", "-H", *bare))
    assert {line for line in found["matches"] if not line.startswith("late.txt")} == set(lines)


@pytest.mark.parametrize(
    ("pattern", "multiline", "count"),
    [
        ("alpha;$", False, 1),
        ("^$", False, 1),
        ("^beta$", False, 1),
        (r"\r$", False, 3),  # who names it finds it
        (r"beta\x0d", False, 1),
        (r"\\r", False, 0),
        (";\nbeta", True, 1),
        (r";\nbeta\n\n", True, 1),
        (";\r\nbeta", True, 1),
        (r"[];]\nb", True, 1),
        (r"beta[^\n]*\n", True, 1),
        ("(?x)alpha; $ # a comment\n", True, 1),
        (r"alpha;\\nbeta", True, 0),
    ],
)
async def test_line_ends_are_no_part_of_the_line_of_a_pattern(
    tmp_path: Path, pattern: str, multiline: bool, count: int
) -> None:
    (tmp_path / "crlf.txt").write_bytes(b"alpha;\r\nbeta\r\n\r\n")
    for path in (None, "crlf.txt"):
        found = await _call(
            tmp_path, "grep", pattern=pattern, multiline=multiline, output="count", path=path
        )
        assert found["matches"] == ([f"crlf.txt:{count}"] if count else [])


@pytest.mark.parametrize(
    ("pattern", "more"),
    [
        ("Müller", {}),
        ("MÜLLER", {"ignore_case": True}),
        ("M.ller$", {}),
        ("M..ller", {}),
        ("[äöü]l|€", {}),
        ("[^a-z]ller", {}),
        (r"\bMüll\w+", {}),
        (r"\w+ü\b", {}),
        (r"M\u00fcller", {}),
        (r"\p{Ll}ller und", {}),
        (r"Café\s+5", {}),  # a space that does not break
        ("und$", {}),  # all of the line is shown
        ("Grüße\n\n", {"multiline": True}),
        ("(?x) Mü ller", {}),
        ("é{2,900}{2,90}", {}),  # the wider pattern is too large
        ("far", {}),  # behind 2,000 characters
    ],
)
async def test_a_file_of_any_encoding_is_searched_as_one_of_utf_8(
    tmp_path: Path, pattern: str, more: dict[str, Any]
) -> None:
    text = "Müller und\r\nund Grüße\n\nCafé\u00a05 €, Menü\n" + 900 * "üß " + "far ä\n"
    encodings = ("cp1252", "utf-8-sig", "utf-16", "utf-32")
    (tmp_path / "utf-8").write_bytes(text.encode())
    for encoding in encodings:
        (tmp_path / encoding).write_bytes(text.encode(encoding))
    for output in ("files", "count", "content"):
        question = {"pattern": pattern, "output": output, **more}
        found = await _call(tmp_path, "grep", **question)
        expected = (await _call(tmp_path, "grep", **question, path="utf-8"))["matches"]
        matches = [
            line for line in found["matches"] if line.startswith("utf-8:") or line == "utf-8"
        ]
        assert matches == expected
        for encoding in encodings:
            of_encoding = [line.replace("utf-8", encoding) for line in expected]
            alone = await _call(tmp_path, "grep", **question, path=encoding)
            assert alone["matches"] == of_encoding
            if encoding != "utf-32":  # in a folder rg takes it for UTF-16
                assert [m for m in found["matches"] if m.startswith(encoding)] == of_encoding


async def test_few_copies_of_large_files_are_in_memory_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = 4_000_000 * b"\xe9\n" + b"far caf\xe9\n"
    for number in range(6):
        (tmp_path / f"{number}.txt").write_bytes(data)
    sizes: list[int] = []

    def copies(opened: dict[bytes, int]) -> dict[bytes, int]:
        made = copies_in_utf8(opened)
        sizes.append(sum(os.fstat(copy).st_size for copy in made.values()))
        return made

    copies_in_utf8 = searching._copies_in_utf8
    monkeypatch.setattr(searching, "_copies_in_utf8", copies)
    found = await _call(tmp_path, "grep", pattern="café")
    assert sorted(found["matches"]) == [f"{number}.txt" for number in range(6)]
    assert len(sizes) > 1
    assert max(sizes) < 32 * 1024 * 1024


@pytest.mark.parametrize(("pattern", "is_found"), [(r"(?-u:f\xe9)", True), (r"(?-u:\xc3)", False)])
async def test_a_pattern_of_bytes_is_searched_in_the_bytes_of_a_file(
    tmp_path: Path, pattern: str, is_found: bool
) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    found = await _call(tmp_path, "grep", pattern=pattern)
    assert found["matches"] == ["latin.txt"] * is_found


def _shown_lines(data: bytes) -> list[str]:
    shown = []
    # The name of a file may have a line end; each line of rg has one `./`.
    for record in re.split(rb"\r?\n(?=\./|--\r?\n|\Z)", data):
        match = _LINE.fullmatch(re.sub(rb"\A--\r?\n", b"", record))
        if match is None:
            continue
        name, number, sign, text = match.groups()
        path = _name(name)
        if path in _expected({path}) and path != "late.txt":
            mark = sign.decode()
            line = text.decode(errors="replace").removesuffix("\r")
            shown.append(f"{path}{mark}{int(number)}{mark}{line}")
    return shown


@pytest.mark.parametrize(
    "pattern",
    [
        *("*", "**", "**/*", "*.py", "**/*.py", "src/**", "src/*", "src/**/*.py", "/src/app.py"),
        *("src", "src/", "*.{py,ts}", "[a-d]*", "[!a-z]*", "?????.txt", "**/er/*", "deep/er/*"),
        *(
            "src/\\[x\\]/*",
            "*.log",
            "**/build/**",
            ".*",
            ".hidden/*",
            "*\\ *",
            "{a,b}*",
            "-*",
            "*:*",
        ),
        *("nothing", "*.PY", "src/**/util.py", "**/deep/**/*.py", "in/*", "out/*", "keys/*.pem"),
    ],
)
async def test_glob_finds_the_files_of_rg_that_are_not_ignored(tree: Path, pattern: str) -> None:
    found = await _call(tree, "glob", pattern=pattern)
    listed = set(_bare(tree, "--files").split(b"\0")[:-1])
    matching = set(_bare(tree, "--files", "-g", pattern).split(b"\0")[:-1])
    expected = {_name(name) for name in listed & matching}
    assert set(found["paths"]) == {name for name in expected if not name.endswith(".part")}
    assert not found["truncated"]


async def test_grep_and_glob_agree_with_rg_on_installed_packages() -> None:
    root = sysconfig.get_path("purelib")
    for pattern in ("zebra", "lru_cache", "qzqzqz"):
        found = await _call(root, "grep", pattern=pattern, type="py", limit=10_000)
        names = {_name(name) for name in _bare(root, "-l", "-tpy", pattern).split(b"\0")[:-1]}
        assert set(found["matches"]) == names
        assert not found["truncated"]
    found = await _call(root, "glob", pattern="**/__init__.py", limit=10_000)
    names = {
        _name(name) for name in _bare(root, "--files", "-g", "**/__init__.py").split(b"\0")[:-1]
    }
    assert set(found["paths"]) == names
