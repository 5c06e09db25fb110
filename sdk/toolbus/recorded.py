"""A block of a program whose spans are recorded, and sent at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from toolbus.telemetry import configure

__all__ = ["recorded"]


@contextmanager
def recorded(service_name: str) -> Iterator[None]:
    """Record spans within the block, if the standard `OTEL_*` variables ask for it.

    What is left is sent at the end, for 2 s at most, which blocks.

    Args:
        service_name: `service.name`, unless the variables give one.
    """
    send_spans = configure(service_name)
    try:
        yield
    finally:
        if send_spans is not None:
            send_spans()
