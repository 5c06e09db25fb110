"""The environment variables of a started program: a short list, and what its entry adds."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["INHERITED", "program_environment"]

INHERITED = frozenset(
    {
        "HOME",
        "LANG",
        "LANGUAGE",
        "LC_ALL",
        "LC_CTYPE",
        "LOGNAME",
        "PATH",
        "SHELL",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TERM",
        "TMPDIR",
        "TZ",
        "USER",
    }
)
"""What a program inherits of its host: where programs, homes and certificates are, and how its user
reads. None of them holds a secret."""


def program_environment(
    added: Mapping[str, str] | None = None, host: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables of a program.

    Args:
        added: What the program's own entry sets; it wins.
        host: The variables of this process.
    """
    # A value that begins with "()" is a shell function: old shells execute it.
    inherited = {
        name: value
        for name, value in host.items()
        if name in INHERITED and not value.startswith("()")
    }
    return inherited | dict(added or {})
