"""References to credentials, `${cred:org/tool/key}`, in texts that the operator has written.

They are resolved at the time of use, in the process that hosts the toolkit. `$${cred:` stands for
the text `${cred:`. Text from anywhere else must not have references: `refuse_references`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Protocol

from toolbus.bounded_logging import traceback_text
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.credential_references import REFERENCE, has_reference, refuse_references
from toolbus_toolkits.credentials.model import CredentialInfo, CredentialName, CredentialRefused
from toolbus_toolkits.credentials.redaction import forms_of
from toolbus_toolkits.credentials.store import CredentialStore

__all__ = [
    "CREDENTIAL_THREADS",
    "CredentialResolver",
    "CredentialSource",
    "RedactingFilter",
    "has_reference",
    "refuse_references",
]

CREDENTIAL_THREADS = WorkerThreads("credentials", 16)
"""Where references are resolved: a keyring may ask a person, and a file may be on a slow disk."""


class CredentialSource(Protocol):
    """What a toolkit needs to use credentials: a `CredentialResolver`, or one of your own."""

    def for_host(self, text: str, host: str) -> str:
        """Return a text for a host. Raises `ToolFailed` for one that may not go there."""

    def for_command(self, text: str, command: str) -> str:
        """Return a text for a program. Raises `ToolFailed` for one that it may not get."""

    def redact(self, text: str) -> str:
        """Return a text without the values that were given out."""


class CredentialResolver:
    """Replaces references by values, and values by names.

    Args:
        store: Where the values are; None refuses every reference.
    """

    def __init__(self, store: CredentialStore | None) -> None:
        self._store = store
        self._names: dict[str, str] = {}
        self._forms: tuple[str, ...] = ()

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
        for form in self._forms:
            text = text.replace(form, self._names[form])
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
            if found.value not in self._names:
                self._names |= dict.fromkeys(forms_of(found.value), f"[credential {name}]")
                # The longest first, and a tuple: other threads read it meanwhile.
                self._forms = tuple(sorted(self._names, key=len, reverse=True))
            return found.value

        return REFERENCE.sub(value_of, text)


class RedactingFilter(logging.Filter):
    """Removes resolved values from log records. Add it to handlers.

    Args:
        resolver: The resolver that has resolved them.
    """

    def __init__(self, resolver: CredentialSource) -> None:
        super().__init__()
        self._redact = resolver.redact

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the message and the traceback of a record, which always passes."""
        try:
            text = record.getMessage()
        except Exception as error:  # as `bounded_logging` does: an argument cannot be formatted
            text = f"{record.msg} (not formatted: {type(error).__name__})"
        record.msg, record.args = self._redact(text), ()
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            record.exc_text = traceback_text(record.exc_info[1])
        if record.exc_text:
            record.exc_text = self._redact(record.exc_text)
        if record.stack_info:
            record.stack_info = self._redact(record.stack_info)
        return True


def _name_in(match: re.Match[str]) -> CredentialName:
    try:
        return CredentialName.parse((match["name"] or "")[:-1])
    except ValueError:
        raise CredentialRefused(
            f"{match[0][:80]!r} is not a reference: write ${{cred:org/tool/key}}, or $${{cred: for "
            "the text itself"
        ) from None
