"""One process of a leg: caller, router or host, and how it talks with the harness.

Lines of JSON over its pipes: it is told where to go on stdin, says that it is ready on stdout, and leaves
when its stdin ends. Standard library only, as rivals import it too.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from bench.measure import Call, Load, measure

Where: TypeAlias = dict[str, Any]
"""What the router said when it was ready: its url, and tokens where a leg has them."""

Role: TypeAlias = Callable[[Where], Awaitable[None]]


def run_role(roles: Mapping[str, Role]) -> None:
    """Run the role that the command line names, on the event loop that it names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=sorted(roles))
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    arguments = parser.parse_args()
    where = json.loads(sys.stdin.readline() or "{}")
    run_on(arguments.loop, _awaited(roles[arguments.role], where))


def run_on(loop: str, main: Coroutine[Any, Any, None]) -> None:
    """Run `main` on uvloop or on plain asyncio."""
    factory = importlib.import_module("uvloop").new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


async def _awaited(role: Role, where: Where) -> None:
    await role(where)


def say(**facts: Any) -> None:
    """Tell the harness something, as one line."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def serve_until_told(**facts: Any) -> None:
    """Say that this process is ready, then wait until the harness ends it."""
    say(**facts)
    await asyncio.to_thread(sys.stdin.read)


async def measure_when_told(call: Call) -> None:
    """Say that this caller is ready, then measure each load that a line asks for, until stdin ends."""
    say(ready=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        sample = await measure(call, Load(**json.loads(line)))
        say(**sample.as_json())
