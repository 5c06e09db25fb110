"""Why a model gave no reply."""

from __future__ import annotations

__all__ = ["ModelError"]


class ModelError(Exception):
    """The API of a model refused a request, failed, could not be reached, or broke off.

    It is no `RoomException`: no tool is concerned. Neither message nor attributes have the key.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status, or the one that an error within a reply means; None if there is none."""
        self.retryable = retryable
        """Whether the same request may succeed later."""
        self.retry_after_s = retry_after_s
        """Seconds that the provider asks to wait, if it says so."""
