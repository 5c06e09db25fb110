"""Which primary the Sentinels of a Redis name, who is silent, and whether they agree."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import RedisError

from toolbus.exit_codes import ExitCode
from toolbus.findings import Ailment

__all__ = ["look_at_sentinels"]


async def look_at_sentinels(pool: SentinelConnectionPool, patience_s: float) -> str:
    """Ask each Sentinel for the primary, and let all of them go afterwards.

    Raises:
        Ailment: None answers or knows it; or, as a warning, some do not answer or name another one.
    """
    sentinels = list(pool.sentinel_manager.sentinels)
    name = pool.service_name
    try:
        asking = (_answer_of(each, name, patience_s) for each in sentinels)
        answers = await asyncio.gather(*asking)
    finally:
        await pool.sentinel_manager.aclose()
    silent = [f"{_place_of(s)} ({a})" for s, a in zip(sentinels, answers, strict=True) if _no(a)]
    known = Counter(each for each in answers if isinstance(each, tuple))
    if len(silent) == len(sentinels):
        found = f"no Sentinel answers: {', '.join(silent)}"
        raise Ailment(found, "are they running, and is each address right?")
    if not known:
        found = f"no Sentinel that answers knows {name!r}"
        repair = "`SENTINEL MASTERS` lists what they know"
        raise Ailment(found, repair, exit_code=ExitCode.USAGE)
    if len(known) > 1 or None in answers:
        words = [f"{_place_of(s)}: {_said(a)}" for s, a in zip(sentinels, answers, strict=True)]
        raise Ailment(
            f"the Sentinels do not agree: {', '.join(words)}",
            "look again in a minute; do all of them watch the same one under this name?",
            status="warn",
        )
    ((primary, count),) = known.items()
    if silent:
        found = f"{count} of {len(sentinels)} name {_said(primary)}; silent: {', '.join(silent)}"
        repair = "start those that are silent: most of them are needed to name another primary"
        raise Ailment(found, repair, status="warn")
    return f"{count} of {len(sentinels)} name {_said(primary)} for {name!r}"


async def _answer_of(sentinel: Any, name: str, patience_s: float) -> tuple[str, int] | str | None:
    """Say whom a Sentinel names, None where it knows no such name, or why it does not answer."""
    try:
        async with asyncio.timeout(patience_s):
            answer = await sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", name)
    except (RedisError, OSError, TimeoutError) as error:
        return str(error) or "no answer in time"
    if not answer:
        return None
    host, port = answer
    return (host.decode() if isinstance(host, bytes) else str(host)), int(port)


def _no(answer: tuple[str, int] | str | None) -> bool:
    return isinstance(answer, str)


def _said(answer: tuple[str, int] | str | None) -> str:
    if answer is None:
        return "knows none"
    return answer if isinstance(answer, str) else f"{answer[0]}:{answer[1]}"


def _place_of(sentinel: Any) -> str:
    options = sentinel.connection_pool.connection_kwargs
    return f"{options['host']}:{options['port']}"
