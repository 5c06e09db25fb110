"""Options, and checks of their values, that several commands share.

A check is a callback of an option or an argument: it returns the value, or raises
`typer.BadParameter`, which names the option.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, TypeAlias

import typer

from toolbus.untrusted_text import SHOWN_CHARS

__all__ = ["Instance", "check_drain", "check_listen_host", "read_mib", "require_utf8"]

_MAX_DIGITS = 12


def check_drain(value: float | None) -> float | None:
    """Check the seconds that running calls may take to finish."""
    # Settings bring in asyncio, and this module is imported to list commands.
    from toolbus.settings import DRAIN_FORM, is_drain

    if value is None or is_drain(value):
        return value
    raise typer.BadParameter(f"{value} is not {DRAIN_FORM}")


def _check_instance(value: str | None) -> str | None:
    """Check the name of a replica."""
    from toolbus.settings import checked_instance

    try:
        return value and checked_instance(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


Instance: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Distinguishes replicas that use the same name. Default: random.",
        callback=_check_instance,
    ),
]
"""The option `--instance` of commands that host."""


def check_listen_host(value: str) -> str:
    """Check the form of an address to listen on; it is not looked up."""
    try:
        value.encode("idna")  # as a lookup does
        is_valid = value != "" and value.isprintable()
    except UnicodeError:
        is_valid = False
    if is_valid:
        return value
    raise typer.BadParameter(
        f"{value[:SHOWN_CHARS]!r} is not an address to listen on: write 127.0.0.1, a host name, or "
        "0.0.0.0 for all interfaces"
    )


def read_mib(value: str | int) -> int:
    """Read a size in MiB, without a unit."""
    text = str(value)
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    raise typer.BadParameter(
        f"{text[:SHOWN_CHARS]!r} is not a whole number of MiB: write 64 for 64 MiB"
    )


def require_utf8(option: Any) -> None:
    """Make an option or argument refuse text with bytes that are not UTF-8: it cannot be sent.

    Paths, and text that is the name of an existing file, also after `@`, may have any bytes.
    """
    check = option.callback

    def callback(context: Any, parameter: Any, value: Any) -> Any:
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, str):
                _check_utf8(item)
        return value if check is None else check(context, parameter, value)

    option.callback = callback


def _check_utf8(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        if not os.path.isfile(text.removeprefix("@")):
            raise typer.BadParameter(f"{text[:SHOWN_CHARS]!r} is not valid UTF-8") from None
