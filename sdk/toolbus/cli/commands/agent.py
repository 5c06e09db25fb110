"""`toolbus agent`: hosts an agent, which answers questions with a model and tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Annotated, Any

import typer

from toolbus.agents.agent import Agent
from toolbus.auth.grants import is_toolkit_name
from toolbus.chunks.json_values import shown
from toolbus.cli.agent_options import AgentChoices, agent_of, chooses_an_agent, own_identity
from toolbus.cli.error_report import reporting_cancel
from toolbus.cli.options import Instance, RecordChoices, check_drain, takes
from toolbus.cli.room_options import Locked, RoomOptions, joins_a_room, read_lock, say_hosted
from toolbus.cli.toolkit_options import OfferingCommand
from toolbus.concurrency import event_loop
from toolbus.diagnostics.exit_codes import UsageError, with_step
from toolbus.diagnostics.join_errors import explain_refusal, read_token, unchecked_claims
from toolbus.errors import NotFound, PermissionDenied
from toolbus.log_output import LOG_FORMAT
from toolbus.room.room_client import RoomClient
from toolbus.service.graceful_shutdown import GracefulShutdown
from toolbus.service.remote_toolkit import flushing, serve_toolkits
from toolbus.settings import RoomSettings
from toolbus.telemetry import configure
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.builders import run_concurrently
from toolbus.turns.turn_toolkits import RequiredToolkit
from toolbus.untrusted_text import one_line

__all__ = ["AgentRoom", "agent"]

_DRAIN_S = 60.0
"""More than a host has: an answer takes several requests to a model, and calls of tools."""
_NO_RULES = (
    "  note: without --permissions FILE or --mode it asks in the room before each call that is not "
    "of a read-only tool of itself or of owners that it trusts (--trust NAME): "
)


_TOKEN_STEP = (
    "`toolbus token create --name NAME --preset agent` creates a token for an agent; one with "
    "--no-available, and without --require, needs only agents.register_private_toolkit"
)


class AgentRoom(RoomClient):
    """A room that waits for what an agent requires, and says when the agent can be asked.

    Args:
        waits: Whether required toolkits are waited for, or have to be there.
    """

    __slots__ = ("_agent", "_as_json", "_waits")

    def __init__(self, agent: Agent, *, waits: bool, as_json: bool, **choices: Any) -> None:
        super().__init__(**choices)
        self._agent = agent
        self._waits = waits
        self._as_json = as_json

    @asynccontextmanager
    async def host(self, toolkit: Toolkit, **options: Any) -> AsyncIterator[Toolkit]:
        """Host the agent's toolkit as `RoomClient.host` does, once all is there."""
        self._check_grants()
        await run_concurrently([self._find(toolkit) for toolkit in self._agent.required])
        async with super().host(toolkit, **options):
            say_hosted(self, toolkit.name, as_json=self._as_json)
            yield toolkit

    def _check_grants(self) -> None:
        """Refuse a token with which nobody can ask, or every question fails or has no tools."""
        needed = ["register_private_toolkit"]
        if self._agent.uses_room:
            needed += ["use_tools", "call"]
        lacking = [grant for grant in needed if not getattr(self.grants.agents, grant)]
        if lacking:
            grants = [f"agents.{name}" for name in lacking]
            text = f"the token of this agent lacks {' and '.join(grants)}"
            raise with_step(PermissionDenied(text, details={"grant": grants[0]}), _TOKEN_STEP)

    async def _find(self, required: RequiredToolkit) -> None:
        """Wait for a toolkit, for as long as it takes: its host may start much later."""
        if not self._waits:
            await replace(required, timeout_s=0).find(self)
            return
        while True:
            with suppress(NotFound):  # after a minute; the next attempt logs again what is missing
                await required.find(self)
                return


@joins_a_room
@chooses_an_agent
@takes(RecordChoices)
def host_agent(  # noqa: PLR0913 - a parameter for each flag
    options: RoomOptions,
    choices: AgentChoices,
    *,
    instance: Instance = None,
    drain_s: Annotated[
        float | None,
        typer.Option(
            "--drain",
            help="Seconds that running answers may take to finish at shutdown. Default: 60. "
            "[TOOLBUS_DRAIN]",
            callback=check_drain,
        ),
    ] = None,
    wait: Annotated[
        bool | None,
        typer.Option(
            "--wait/--no-wait",
            help="Keep trying while the server cannot be reached, or a required toolkit is not "
            "there. Default: --wait. [TOOLBUS_WAIT]",
            show_default=False,
        ),
    ] = None,
    locked: Locked = None,
    records: RecordChoices,
) -> None:
    """Host an agent until SIGTERM or Ctrl-C.

    Running answers may finish; a second signal aborts.

    --name is its name as a participant and of its toolkit: `toolbus chat NAME` asks it.
    `toolbus agent --offer NAME --help` shows the flags of the toolkit NAME too.
    """
    records.check()
    with reporting_cancel(as_json=options.as_json):
        settings = options.resolve()
        if wait is None:
            wait = settings.wait
        name = _name_of(settings, options.name)
        store = records.open()
        trusted = asyncio.run(own_identity(settings, options.context))
        made = agent_of(None, choices, name=name, approve="room", records=store, trusted=trusted)
        made.toolkit.records = store
        if choices.permissions is None and choices.mode is None:
            owners = map(one_line, (*trusted, *(choices.trust or ())))
            typer.echo(_NO_RULES + (", ".join(owners) or "none so far"), err=True)
        room = AgentRoom(
            made,
            waits=wait,
            as_json=options.as_json,
            instance=instance,
            locked=read_lock(settings, locked),
            **options.choices(),
        )
        if drain_s is None:
            drain_s = settings.drain_s
        if drain_s is None:
            drain_s = _DRAIN_S

        async def serve(end: GracefulShutdown) -> None:
            async with explain_refusal(settings):
                await serve_toolkits([made.toolkit], room, drain_s, wait=wait, end=end)

        logging.basicConfig(format=LOG_FORMAT)
        with GracefulShutdown(flushing(configure(name), [made.toolkit])) as end:
            event_loop.run(serve(end))


agent: typer.Typer = typer.Typer(add_completion=False)
"""The command `toolbus agent`."""
agent.command("agent", cls=OfferingCommand)(host_agent)


def _name_of(settings: RoomSettings, wanted: str | None) -> str:
    """Return the participant's name, which is that of the agent's toolkit. Raises UsageError."""
    name = unchecked_claims(asyncio.run(read_token(settings))).get("sub")
    if wanted is not None and name != wanted:
        raise UsageError(
            f"--name {shown(wanted)}: {settings.token_from} is one for {shown(name)}: leave out "
            "--name, or give a token for that name"
        )
    if isinstance(name, str) and is_toolkit_name(name):
        return name
    raise UsageError(
        f"an agent's toolkit has the name of its participant, and {shown(name)} cannot be one: a "
        "lower-case letter, then up to 63 of a-z 0-9 _ -; give --name, or a token for such a name"
    )
