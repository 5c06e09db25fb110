"""References to credentials, `${cred:org/tool/key}`, in texts that the operator has written.

They are resolved at the time of use, in the process that hosts the toolkit. `$${cred:` stands for
the text `${cred:`. Text from anywhere else must not have references: `refuse_references`.
"""

from __future__ import annotations

import json
import logging
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

from toolbus import InvalidArguments
from toolbus.bounded_logging import traceback_text
from toolbus_toolkits.credentials.model import CredentialInfo, CredentialName, CredentialRefused
from toolbus_toolkits.credentials.store import CredentialStore

__all__ = ["CredentialResolver", "RedactingFilter", "has_reference", "refuse_references"]

_MIN_FORM_CHARS = 5  # shorter ones would occur by chance
_REFERENCE = re.compile(r"(?P<escaped>\$\$\{cred:)|\$\{cred:(?P<name>[^}]{0,256}\})?")


class CredentialResolver:
    """Replaces references by values, and values by names.

    Args:
        store: Where the values are; None refuses every reference.
    """

    def __init__(self, store: CredentialStore | None) -> None:
        self._store = store
        self._seen: dict[str, str] = {}

    def for_host(self, text: str, host: str) -> str:
        """Replace each reference in a text that is sent to `host`, or `host:port`.

        Raises `CredentialRefused` if a reference is malformed, its credential is missing, or may
        not go to this host.
        """
        return self._replaced(text, lambda info: info.allows_host(host), "host", host)

    def for_command(self, text: str, command: str) -> str:
        """Replace each reference in a text for a program; `command` is as the config has it."""
        return self._replaced(text, lambda info: command in info.commands, "command", command)

    def redact(self, text: str) -> str:
        """Replace every value that was resolved by `[credential org/tool/key]`."""
        for value in sorted(self._seen, key=len, reverse=True):
            text = text.replace(value, self._seen[value])
        return text

    def _replaced(
        self, text: str, allows: Callable[[CredentialInfo], bool], kind: str, place: str
    ) -> str:
        def value_of(match: re.Match[str]) -> str:
            if match["escaped"]:
                return "${cred:"
            name = _name_in(match)
            if self._store is None:
                raise CredentialRefused(
                    f"the reference to {name} is not resolved here: write it into a file that the "
                    "operator names on the command line"
                )
            found = self._store.get(name)
            if not allows(found.info):
                raise CredentialRefused(
                    f"the credential {name} may not go to the {kind} {place[:255]!r}: set it again "
                    f"with `toolbus credential set {name} --{kind} ...`"
                )
            self._remember(name, found.value)
            return found.value

        return _REFERENCE.sub(value_of, text)

    def _remember(self, name: CredentialName, value: str) -> None:
        escaped = (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
        quoted = (repr(value)[1:-1], quote(value, safe=""), quote_plus(value))
        for form in (value, *escaped, *quoted, *_base64_forms(value)):
            self._seen[form] = f"[credential {name}]"


class RedactingFilter(logging.Filter):
    """Removes resolved values from log records. Add it to handlers.

    Args:
        resolver: The resolver that has resolved them.
    """

    def __init__(self, resolver: CredentialResolver) -> None:
        super().__init__()
        self._resolver = resolver

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the message and the traceback of a record, which always passes."""
        record.msg, record.args = self._resolver.redact(record.getMessage()), ()
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            record.exc_text = traceback_text(record.exc_info[1])
        if record.exc_text:
            record.exc_text = self._resolver.redact(record.exc_text)
        return True


def has_reference(value: Any) -> bool:
    """Whether a JSON value has a reference in a text or a name, malformed ones included."""
    return next(_references(value, ""), None) is not None


def refuse_references(value: Any, path: str = "") -> None:
    """Refuse a JSON value that has a reference.

    Args:
        value: A config of a builder, a message, arguments, a bundle.
        path: The JSON pointer of the value, for the error.

    Raises:
        InvalidArguments: It has one; `details["path"]` is its JSON pointer.
    """
    place = next(_references(value, path), None)
    if place is not None:
        text = "references to credentials are allowed only in files that the operator names"
        raise InvalidArguments(f"{place or '/'}: {text}", details={"path": place, "message": text})


def _references(value: Any, path: str) -> Iterator[str]:
    """Return the JSON pointers of texts and names with a reference."""
    pending: list[tuple[Any, str]] = [(value, path)]
    while pending:
        each, place = pending.pop()
        if isinstance(each, str):
            if any(not match["escaped"] for match in _REFERENCE.finditer(each)):
                yield place
        elif isinstance(each, dict):
            for name, child in each.items():
                key = str(name).replace("~", "~0").replace("/", "~1")
                pending += [(child, f"{place}/{key}"), (str(name), f"{place}/{key}")]
        elif isinstance(each, list | tuple):
            pending += [(child, f"{place}/{index}") for index, child in enumerate(each)]


def _base64_forms(value: str) -> Iterator[str]:
    """Return how a value looks within base64, as in `user:value`: at each of three offsets.

    The characters at its ends also depend on its neighbours and are left out.
    """
    data = value.encode()
    for offset in range(3):
        first, end = -(-8 * offset // 6), 8 * (offset + len(data)) // 6
        for encode in (b64encode, urlsafe_b64encode):
            form = encode(bytes(offset) + data).decode()[first:end]
            if len(form) >= _MIN_FORM_CHARS:
                yield form


def _name_in(match: re.Match[str]) -> CredentialName:
    try:
        return CredentialName.parse((match["name"] or "")[:-1])
    except ValueError:
        raise CredentialRefused(
            f"{match[0][:80]!r} is not a reference: write ${{cred:org/tool/key}}, or $${{cred: for "
            "the text itself"
        ) from None
