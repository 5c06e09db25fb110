"""A file that is written as it comes, and takes the place of an older one only once it is whole."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["new_file"]


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to be written; it stands at its place once the block has ended.

    A block that fails leaves what was there. One that is given up, as by Ctrl-C, leaves what was
    written: a stream may have no other end. What is no plain file, such as a pipe, is written
    directly.

    Raises:
        OSError: It cannot be written; it names `path`.
    """
    place = path.resolve()
    if place.exists() and not place.is_file():
        with open(place, "wb") as direct:
            yield direct
        return
    beside = place.with_name(f".{secrets.token_hex(8)}.part")
    file = _created(beside, place)
    try:
        yield file
    except (asyncio.CancelledError, KeyboardInterrupt):
        _put(file, beside, place)
        raise
    except BaseException:
        file.close()
        beside.unlink(missing_ok=True)
        raise
    _put(file, beside, place)


def _created(beside: Path, place: Path) -> BinaryIO:
    if place.exists() and not os.access(place, os.W_OK):
        open(place, "ab").close()  # says why not
    try:
        file = open(beside, "xb")
    except OSError as error:
        error.filename = str(place)
        raise
    if place.exists():
        os.chmod(beside, place.stat().st_mode & 0o777)
    return file


def _put(file: BinaryIO, beside: Path, place: Path) -> None:
    file.close()
    os.replace(beside, place)
