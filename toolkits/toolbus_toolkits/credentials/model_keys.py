"""The keys of models from the store: the credentials `models/PROVIDER/key`."""

from __future__ import annotations

from toolbus_toolkits.credentials.model import (
    CredentialName,
    CredentialNotFound,
    CredentialRefused,
)
from toolbus_toolkits.credentials.store import CredentialStore

__all__ = ["model_key"]


def model_key(provider: str, host: str) -> str | None:
    """Return the key that is stored for a provider; None if there is none. Blocking.

    Args:
        provider: `openai`, `anthropic` or `gemini`.
        host: Where it is sent: a name with an optional port.

    Raises:
        CredentialRefused: It may not go to this host.
        StoreUnavailable: There is no store.
    """
    name = CredentialName("models", provider, "key")
    try:
        found = CredentialStore.open().get(name)
    except CredentialNotFound:
        return None
    if not found.info.allows_host(host):
        raise CredentialRefused(f"the credential {name} may not go to the host {host!r}")
    return found.value
