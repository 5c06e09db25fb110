"""Runs a function as a user to whom permissions of files apply, though tests may run as root."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")
_VERSION = 0x20080522  # of the header of capset(2)


def as_plain_user(function: Callable[[], _Result]) -> _Result:
    """Run a function on a thread of its own without capabilities, as which root is no owner."""
    with ThreadPoolExecutor(1, initializer=_drop_capabilities) as pool:
        return pool.submit(function).result()


def _drop_capabilities() -> None:
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)  # 0: this thread
    if libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capset")
