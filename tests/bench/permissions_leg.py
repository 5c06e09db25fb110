"""One process: decisions about a call, with few and with many rules."""

from __future__ import annotations

from typing import Any

from bench.role import Facts, keep_calling, run_role, serve_orders
from toolbus import Assessment, Permissions, Rule, ToolContext, ToolInfo
from toolbus.tools.middleware import ToolCall
from toolbus.tools.tool_run import Participant

TOOL = ToolInfo(
    "shell.run", "", {}, "shell", "run", owner="ops", issuer="main", own_name="shell.run"
)
AGENT = Participant("1", "agent", issuer="main")
ANN = Participant("2", "ann", issuer="main")
CALL = ToolCall(TOOL, {"command": "ls"}, ToolContext(caller=AGENT, on_behalf_of=ANN))
SAID = Assessment("pass", matches=("command 1:*",))


def rule(number: int) -> Rule:
    """Make one of four kinds: of another tool, with a pattern, of a principal, of an owner."""
    behavior: Any = ("deny", "ask", "allow")[number % 3]
    match number % 4:
        case 0:
            return Rule(behavior=behavior, tool=f"kit{number}.run")
        case 1:
            return Rule(behavior=behavior, tool="shell.run", match=f"command {number}:*")
        case 2:
            return Rule(behavior=behavior, tool="shell", principal=f"user{number}")
        case _:
            return Rule(behavior=behavior, owner=f"owner{number}")


async def caller(_facts: Facts) -> None:
    """Decide with as many rules as an order says; none is the call of an empty function."""
    made = {amount: Permissions(rules=map(rule, range(amount))) for amount in (100, 10_000)}

    async def decide(rules: int, seconds: float, in_flight: int) -> Facts:
        permissions = made.get(rules)

        async def call(_a: int, _b: int) -> dict[str, Any]:
            if permissions is not None:
                permissions.decide(CALL, SAID)
            return {}

        await call(0, 0)
        return await keep_calling(call, seconds, in_flight)

    await serve_orders({"call": decide}, ready=True)


if __name__ == "__main__":
    run_role({"caller": caller})
