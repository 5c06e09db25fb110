"""Patterns of paths: they cover what `rg` leaves out for them, and what a rule of them is about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from toolbus_toolkits.workspace import PathPattern, RootedPattern, Roots, escaped

RG = Path(sys.executable).with_name("rg")
NAMES = ("a", "b", "ab", "aab", "a b", "a.py", ".e", "{a}", "a,b", "[a]", "*", "x\ny", "A", "a-c")
PIECES = (
    *("a", "b", "/", "*", "**", "?", "/**", "**/", "{", "}", ",", ".py", "\\", "[ab]", "[!b/]"),
    *("[a-b]", "[]a]", " ", ".", "!", "\\*"),
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, frozenset[str]]:
    """A tree of files with names that look like patterns, and their paths."""
    root = tmp_path_factory.mktemp("tree")
    for at, name in enumerate(NAMES):
        for other in NAMES[at % 3 :: 3]:
            folder = root / f"{name}" / f"{other}.d" / other
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
            (folder.parent / f"{name}{other}").touch()
    found = (Path(where) / name for where, _, names in os.walk(root) for name in names)
    return root, frozenset(str(path.relative_to(root)) for path in found)


@settings(max_examples=250)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join))
@example("a{/**,b}/ab")
@example("{**/a,b}*/{a,b}")
@example("a/{**,b}/ab")
@example("x{**/a,b.d/**}/")
@example("{}**/a")
@example("{a,{}}*/{,b}a")
def test_a_pattern_covers_what_rg_leaves_out(
    tree: tuple[Path, frozenset[str]], pattern: str
) -> None:
    root, paths = tree
    try:
        found = PathPattern(pattern)
    except ValueError:
        assume(False)
    options = ("--no-config", "--no-ignore", "--hidden", "--null", "--glob", f"!{pattern}")
    listed = subprocess.run((RG, "--files", *options), cwd=root, capture_output=True, check=False)
    assert listed.returncode < 2, listed.stderr
    left = set(filter(None, listed.stdout.decode().split("\0")))
    assume(not pattern.startswith("./"))  # of which rg has no file
    assert {path for path in paths if found.covers(path)} == paths - left


@pytest.mark.parametrize(
    ("pattern", "covered", "others"),
    [
        ("*.md", "a.md x/a.md x.md/a .md", "a.mdx A.MD"),
        ("src/**", "src/a src/a/b", "src x/src/a"),
        ("src", "src src/a x/src x/src/a", "srcs"),
        ("/src", "src src/a", "x/src"),
        ("./src", "src src/a", "x/src"),
        ("src/", "src/a x/src/a", "src x/src"),
        ("src/*.py", "src/a.py", "src/x/a.py a.py"),
        ("src/**/*.py", "src/a.py src/x/y/a.py", "a.py"),
        ("{src,test{s,}}/**/[ab]?", "src/ab tests/x/b\u00e9 tests/aa", "test/ab src/cb"),
        ("a[!\u00e9]b", "axb a\u00e8b", "a\u00e9b a/b"),
        ("x{**/a,b}", "xa x/a xy/z/a xb", "xya x/b"),
        ("\\#a", "#a", "a"),
        ("#a", "#a", "a"),
        ("a  ", "a", "a\\ "),
        ("**", "a a/b .", ""),
        ("*", "a a/b .", ""),
    ],
)
def test_a_pattern_is_read_as_in_gitignore(pattern: str, covered: str, others: str) -> None:
    found = PathPattern(pattern)
    assert [path for path in covered.split() if not found.covers(path)] == []
    assert [path for path in others.split() if found.covers(path)] == []


def test_a_slash_at_the_end_is_about_folders() -> None:
    assert PathPattern("src/").covers("x/src", is_folder=True)


UNREADABLE = (
    *("", " ", "/", "[a", "a\\", "{a", "a}", "!a", "a\0b", "[b-a]", "a//b", "./", "a/./b"),
    *("..", "../a", "a/..", "{.,a}./b", "\\.\\./a", "{a,b}" * 9, "{" * 20 + "}" * 20, "a" * 5000),
)


@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: repr(text)[:20])
def test_what_is_no_pattern_denies_and_allows_nothing(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"."):
        PathPattern(text)
    found = RootedPattern(text, Roots([tmp_path]))
    assert found.may_cover(str(tmp_path / "x"))
    assert not found.covers(str(tmp_path / "x"))


@given(st.text(alphabet=[*"ab*?[]{}!#~\\/, .", "\n"], min_size=1, max_size=8))
def test_the_characters_of_a_path_are_matched_as_they_are(text: str) -> None:
    path = "/".join(name for name in text.split("/") if name.strip(" \n.") and name != "..")
    assume(path)
    found = PathPattern(f"/{escaped(path)}")
    assert found.covers(path)
    assert found.start == f"{path}/"


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 200 + "b", "a" * 4000),
        ("**/a/" * 200 + "b", "a/" * 2000),
        ("**/*a*a*a/**/*b*b*b/**/c", "/".join(["a" * 200] * 20)),
        ("{*a,*b}{*a,*b}" * 4 + "c", "ab" * 2000),
        ("{" * 16 + "*" + ",a}" * 16, "b" * 4000),
    ],
)
def test_no_pattern_takes_long(pattern: str, path: str) -> None:
    PathPattern(pattern).covers(path)  # ten thousands of years, if it looked back


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    for name in ("work", "more", "work/src"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("work")
    (tmp_path / "home").symlink_to(".")
    return Roots([tmp_path / "link", tmp_path / "more"])


# Pattern, what an allow rule covers, and what only a deny covers; `@` is the folder of both roots.
RULES = [
    ("src/**", "work/src/a", "more/src/a"),
    ("*.py", "work/src/a.py", "more/a.py"),
    ("@/work/src/**", "work/src/a", ""),
    ("@/work/**", "work/src/a work/b", ""),
    ("@/more/**", "more/src/a", ""),
    ("@/**", "", "work/src/a more/a"),
    ("@/{work,more}/**", "", "work/src/a more/a"),
    ("/src/**", "work/src/a", "more/src/a"),
    ("~/work/*.py", "work/a.py", ""),
    ("@/link/src/**", "", "work/src/a"),
    ("@/home/{more,work}/**", "", "work/src/a more/a"),
    ("@/home/more", "", "more/a"),
    ("~/link/*.py", "", "work/a.py"),
    ("~/work/../**", "", "work/a more/b"),
]


@pytest.mark.parametrize(("pattern", "sure", "only_denied"), RULES)
def test_a_rule_is_about_a_root_or_an_absolute_path(
    roots: Roots, monkeypatch: pytest.MonkeyPatch, pattern: str, sure: str, only_denied: str
) -> None:
    place = os.path.dirname(roots.folders[0])
    monkeypatch.setenv("HOME", f"{place}/home")
    found = RootedPattern(pattern.replace("@", escaped(place)), roots)
    paths = {f"{place}/{path}": path for path in (*sure.split(), *only_denied.split())}
    others = [f"{place}/work/other/x", f"{place}/more/x"]
    assert [name for path, name in paths.items() if found.may_cover(path)] == [*paths.values()]
    assert set(found.may_be_covered([*paths, *others])) >= paths.keys()
    assert [name for path, name in paths.items() if found.covers(path)] == sure.split()
    if "src" in pattern:
        assert not any(found.may_cover(path) for path in others)


def test_the_path_of_a_root_of_one_name_may_be_that_of_a_folder_in_it() -> None:
    found = RootedPattern("/usr/**", Roots(["/usr", "/etc"]))
    assert found.covers("/usr/usr/x")
    assert not found.covers("/usr/x")
    assert found.may_cover("/usr/x")
    assert RootedPattern("/etc/**", Roots(["/usr", "/etc"])).covers("/etc/x")
