"""What a server answers to plain HTTP: a page, and the metrics that Prometheus scrapes."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from support.clients.raw_client import Head, raw_connection

__all__ = ["numbers_at", "read"]


async def read(url: str, path: str, method: str = "GET", headers: str = "") -> Head:
    """Send a plain HTTP request and return the answer."""
    async with raw_connection(url) as client:
        client.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        return await client.read_head()


async def numbers_at(url: str) -> dict[str, float]:
    """Scrape the metrics: the value of each sample, by its name and label values."""
    head = await read(url, "/metrics")
    assert (head.status, head.headers["content-type"]) == (
        200,
        "text/plain; version=0.0.4; charset=utf-8",
    )
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(head.body)
        for sample in family.samples
    }
