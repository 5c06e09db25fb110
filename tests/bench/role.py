"""One process of a leg: caller, router or host, and how it talks with the harness.

Lines of JSON over its pipes: it is told where to go on stdin, says that it is ready on stdout, and
leaves when its stdin ends. Standard library only, as rivals import it too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import importlib
import json
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeAlias

from bench.measure import Call, Load, measure
from bench.sampler import Sampler

Where: TypeAlias = dict[str, Any]
"""What the router said when it was ready: its url, and tokens where a leg has them."""

Role: TypeAlias = Callable[[Where], Coroutine[Any, Any, None]]


def run_role(roles: Mapping[str, Role]) -> None:
    """Run the role that the command line names, on the event loop that it names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=sorted(roles))
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    parser.add_argument("--count", metavar="FILE", help="write what cProfile saw")
    parser.add_argument("--sample", metavar="FILE", help="write where the time went")
    arguments = parser.parse_args()
    role = roles[arguments.role](json.loads(sys.stdin.readline() or "{}"))
    with _watched(arguments.count, arguments.sample):
        run_on(arguments.loop, role)


@contextlib.contextmanager
def _watched(count: str | None, sample: str | None) -> Iterator[None]:
    if count is not None:
        with cProfile.Profile() as profile:
            yield
        profile.dump_stats(count)
    elif sample is not None:
        sampler = Sampler()
        sampler.start()
        yield
        sampler.write(sample)
    else:
        yield


def run_on(loop: str, main: Coroutine[Any, Any, None]) -> None:
    """Run `main` on uvloop or on plain asyncio."""
    factory = importlib.import_module("uvloop").new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def say(**facts: Any) -> None:
    """Tell the harness something, as one line."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def serve_until_told(on_line: Callable[[], None] | None = None, /, **facts: Any) -> None:
    """Say that this process is ready, then wait until the harness ends it.

    `on_line` is called, on a thread, for each line that the harness says meanwhile.
    """
    say(**facts)
    while await next_line():
        if on_line is not None:
            await asyncio.to_thread(on_line)


async def measure_when_told(call: Call) -> None:
    """Say that this caller is ready, then measure the load of each line, until stdin ends."""
    say(ready=True)
    line = await next_line()
    while line:
        following = asyncio.ensure_future(next_line())
        measuring = asyncio.ensure_future(measure(call, Load(**json.loads(line))))
        await asyncio.wait([following, measuring], return_when=asyncio.FIRST_COMPLETED)
        if not measuring.done():  # stdin has ended: the harness is gone
            measuring.cancel()
            return
        say(**measuring.result().as_json())
        line = await following


async def next_line() -> str:
    """The next line that the harness says; empty once it has gone."""
    return await asyncio.to_thread(sys.stdin.readline)
