"""Paths, and whether they are inside a working directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolbus_toolkits.workspace import Roots, UnresolvedPath, homes, resolve


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder `work`, with symlinks, next to a folder `other`."""
    place = tmp_path.resolve()
    for folder in ("work/src", "work2", "other/deep"):
        (place / folder).mkdir(parents=True)
    links = {"out": "../other", "in": "src", "away": "/", "loop": "ring", "ring": "loop"}
    links |= {"deep": "../other/deep", "far": "out/deep", "gone": "../nothing/here", "self": "."}
    for name, target in links.items():
        (place / "work" / name).symlink_to(target)
    return place


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "work"),
        (".", "work"),
        ("src/../a", "work/a"),
        ("..", ""),
        ("../../../../../../../../../..", "/"),
        ("in/a", "work/src/a"),
        ("out/a", "other/a"),
        # `..` is the folder above what the symlink names, not above its name.
        ("deep/../a", "other/a"),
        ("far/x", "other/deep/x"),
        ("away/etc", "/etc"),
        ("gone/a", "nothing/here/a"),
        ("self/self/self/a", "work/a"),
        ("not/../there/./a//b/", "work/there/a/b"),
        ("/..//etc/./", "/etc"),
        ("~/a", "work/~/a"),
    ],
)
def test_a_path_is_resolved_as_the_kernel_does(place: Path, text: str, found: str) -> None:
    assert resolve(text, str(place / "work")) == str(place / found)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("loop", "its symlinks lead nowhere"),
        ("loop/a/..", "its symlinks lead nowhere"),
        ("self/" * 41 + "a", "its symlinks lead nowhere"),
        ("a\0b", "it contains NUL"),
        ("a/" * 2048, "it is too long"),
        ("\ud800", "it is no text"),
        ("/proc/self/root/etc", "it names another file for each process"),
        ("/proc/self/cwd", "it names another file for each process"),
    ],
)
def test_a_path_that_names_no_file_is_an_error(place: Path, text: str, why: str) -> None:
    with pytest.raises(UnresolvedPath, match=why):
        resolve(text, str(place / "work"))


def test_a_path_is_inside_by_its_real_path(place: Path) -> None:
    work = str(place / "work")
    roots = Roots([place / "work" / "self", place / "work2"])
    for text in ("", "a", "in/a", "../work2/a"):
        assert roots.contains(resolve(text, work)), text
    for text in ("..", "out", "out/a", "away", "../work3", "../workshop/a"):
        assert not roots.contains(resolve(text, work)), text
    assert Roots(["/"]).contains("/etc")


def test_a_root_that_is_replaced_by_a_symlink_has_nothing_inside(place: Path) -> None:
    roots = Roots([place / "work2"])
    (place / "work2").rmdir()
    assert roots.contains(resolve("a", str(place / "work2")))
    (place / "work2").symlink_to("other")
    assert not roots.contains(resolve("a", str(place / "work2")))


def test_what_nobody_should_delete_is_known(place: Path) -> None:
    roots = Roots([place / "work"])
    protected = ["/", "/etc", "/home", "/home/ann", "/root", str(place), str(place / "work")]
    protected += [*homes(), *(os.path.dirname(home) for home in homes())]
    assert [path for path in protected if not roots.protected_as(path)] == []
    free = [str(place / "work/src"), str(place / "other"), "/home/ann/project", "/usr/share/x"]
    assert [path for path in free if roots.protected_as(path)] == []
    assert roots.is_root_or_above(str(place))
    assert not roots.is_root_or_above(str(place / "work/src"))


def test_a_root_has_to_be_a_folder(place: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        Roots([place / "nothing"])
