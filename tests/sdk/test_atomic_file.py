from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from toolbus.atomic_file import AtomicFile, write_atomically


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with AtomicFile(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert (path.read_bytes(), mode_of(path)) == (b"new", 0o640)
    assert list(tmp_path.iterdir()) == [path]


def test_failed_block_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), AtomicFile(path) as file:
        file.write("no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_mode_is_that_of_the_new_file_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    with AtomicFile(path, mode=0o600, sync=True) as file:
        assert file.draft is not None
        assert mode_of(file.draft) == 0o600
    assert mode_of(path) == 0o600


def test_file_that_exists_is_not_replaced_unless_allowed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_atomically(path, b"first", replace=False)
    with pytest.raises(FileExistsError):
        write_atomically(path, b"second", replace=False)
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_symbolic_link_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.touch()
    link.symlink_to(target)
    write_atomically(link, b"data")
    assert link.is_symlink()
    assert target.read_bytes() == b"data"


def test_device_is_written_directly() -> None:
    with AtomicFile("/dev/null") as file:
        file.write(b"data")
        assert file.draft is None
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write any file")
def test_read_only_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.touch(0o400)
    with pytest.raises(PermissionError) as caught:
        write_atomically(path, b"data")
    assert caught.value.filename == str(path)


def test_error_names_the_path_and_not_the_draft(tmp_path: Path) -> None:
    path = tmp_path / "no folder" / "a.txt"
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(path, b"data")
    assert caught.value.filename == str(path)


def test_error_of_a_full_device_names_the_path() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically("/dev/full", b"data")
    assert caught.value.filename == "/dev/full"
