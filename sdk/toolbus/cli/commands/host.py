"""`toolbus host`: hosts toolkits of a module or of an installed package.

A toolkit is named as `module:attribute`, where the attribute is a toolkit or a function that
returns one, or by its name in the entry point group `toolbus.toolkits`. The config of a factory
comes from flags and variables of its own: see `toolbus.cli.toolkit_options`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from toolbus.auth.participant_names import is_participant_name
from toolbus.cli.completion import complete_installed
from toolbus.cli.error_report import reporting_cancel
from toolbus.cli.options import Instance, RecordChoices, check_drain, takes
from toolbus.cli.room_options import Locked, RoomOptions, joins_a_room, read_lock, say_hosted
from toolbus.cli.toolkit_options import (
    GivenFlags,
    HostCommand,
    find_toolkit,
    logger_names,
    make_configured,
)
from toolbus.concurrency import event_loop
from toolbus.diagnostics.exit_codes import UsageError, grant_command, with_step
from toolbus.diagnostics.join_errors import explain_refusal, read_token
from toolbus.errors import PermissionDenied
from toolbus.hosting.hosted_toolkit import NO_PATTERNS, InvalidOffer
from toolbus.log_output import LOG_FORMAT, show_info_of
from toolbus.permissions.rule_file import RuleFileError
from toolbus.room.room_client import RoomClient
from toolbus.service.graceful_shutdown import GracefulShutdown
from toolbus.service.policy_file import PolicyFile
from toolbus.service.remote_toolkit import flushing, serve_toolkits
from toolbus.telemetry import configure
from toolbus.tools.toolkit import Toolkit

__all__ = ["host", "tune_collector"]


_PRIVATE_STEP = (
    "this token permits private toolkits: add --private, and --share to show them to others; "
    f"`{grant_command('agents.register_public_toolkit')}` creates a token for public toolkits"
)


class _HostingRoom(RoomClient):
    """A room that prints the toolkits on stdout as soon as all of them can be called.

    Not earlier: if one is refused, none is hosted. What a hosted toolkit brings is printed with it,
    and later as soon as it can be called.

    Args:
        chosen: How toolkits are hosted that do not say it themselves: options of `host`.
    """

    __slots__ = ("_as_json", "_chosen", "_hosted", "_is_announced", "_named", "_policy")

    def __init__(
        self,
        chosen: Mapping[str, Any],
        named: Sequence[Toolkit],
        *,
        policy: PolicyFile | None,
        as_json: bool,
        **choices: Any,
    ) -> None:
        super().__init__(**choices)
        self._policy = policy
        self._chosen = chosen
        self._named = named
        self._hosted: list[Toolkit] = []
        self._is_announced = False
        self._as_json = as_json

    @asynccontextmanager
    async def host(self, toolkit: Toolkit, **options: Any) -> AsyncIterator[Toolkit]:
        if self._policy is not None:  # what a hosted toolkit brings is bound too
            self._policy.bind(toolkit)
        given = {name: value for name, value in options.items() if value is not None}
        hosted = super().host(toolkit, **{**self._chosen, **given})
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(hosted)
            except PermissionDenied as error:
                grants = self.grants.agents
                if grants.register_private_toolkit and not grants.register_public_toolkit:
                    raise with_step(error, _PRIVATE_STEP) from None
                raise
            self._hosted.append(toolkit)
            stack.callback(self._hosted.remove, toolkit)
            if self._is_announced:
                self._print_hosted([toolkit])
            elif sum(ready in self._named for ready in self._hosted) == len(self._named):
                self._is_announced = True
                stack.callback(setattr, self, "_is_announced", False)
                tune_collector()
                self._print_hosted(self._hosted)
            yield toolkit

    @asynccontextmanager
    async def watching_policy(self) -> AsyncIterator[None]:
        """Read the policy again when its file changes, while the block runs."""
        if self._policy is None:
            yield
            return
        watching = asyncio.create_task(self._policy.watch())
        try:
            yield
        finally:
            watching.cancel()

    async def replace(self, toolkit: Toolkit, *, supersede: bool | None = None) -> None:
        if self._policy is not None:
            self._policy.bind(toolkit)
        await super().replace(toolkit, supersede=supersede)

    def _print_hosted(self, toolkits: Sequence[Toolkit]) -> None:
        for toolkit in toolkits:
            say_hosted(self, toolkit.name, as_json=self._as_json)


def tune_collector() -> None:
    """Let Python's garbage collector hold this process up less.

    It looks at all objects in one go when a process makes many new ones, as it does for large
    arguments. It skips those that exist now, and looks at all others a third as often as by
    default. Measured in docs/guides/host.md.
    """
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 30)


host: typer.Typer = typer.Typer(add_completion=False)
"""The command `toolbus host`."""


@host.command("host", cls=HostCommand)
@joins_a_room
@takes(RecordChoices)
def host_toolkits(  # noqa: PLR0913 - a parameter for each flag
    options: RoomOptions,
    invocation: typer.Context,
    toolkits: Annotated[
        list[str],
        typer.Argument(
            help="Toolkits to host: module:attribute, or the name of an installed toolkit.",
            autocompletion=complete_installed,
        ),
    ],
    instance: Instance = None,
    private: Annotated[
        bool,
        typer.Option("--private", help="Make the toolkits visible only to you and to --share."),
    ] = False,
    share: Annotated[
        list[str] | None,
        typer.Option(
            help="Who else can see private toolkits: name:X, role:X or '*' for all. Repeatable."
        ),
    ] = None,
    supersede: Annotated[
        bool | None,
        typer.Option(
            "--supersede/--no-supersede",
            help="Take over from hosts with another definition, or refuse to start beside them. "
            "Default: take over from a lower version, else wait in reserve.",
        ),
    ] = None,
    drain_s: Annotated[
        float | None,
        typer.Option(
            "--drain",
            help="Seconds that running calls may take to finish at shutdown. Default: 10.",
            callback=check_drain,
        ),
    ] = None,
    wait: Annotated[
        bool | None,
        typer.Option(
            "--wait/--no-wait",
            help="Keep trying while the server cannot be reached. Default: --wait. [TOOLBUS_WAIT]",
            show_default=False,
        ),
    ] = None,
    locked: Locked = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="A file of rules that refuse calls, or let them wait for a person, whoever makes "
            "them. It is read again when it changes; `toolbus permissions check` finds its "
            "mistakes.",
            show_default=False,
        ),
    ] = None,
    *,
    records: RecordChoices,
) -> None:
    """Host toolkits until SIGTERM or Ctrl-C.

    Running calls may finish; a second signal aborts.

    `toolbus host NAME --help` shows the flags of the toolkit NAME too.
    """
    if share and not private:
        raise UsageError("--share is only for private toolkits: add --private")
    for selector in share or ():
        _check_share(selector)
    records.check()
    with reporting_cancel(as_json=options.as_json):
        given = GivenFlags.of(invocation)
        found = [
            find_toolkit(reference, partial(make_configured, reference, given=given))
            for reference in toolkits
        ]
        if records.are_given:
            store = records.open()
            for toolkit in found:
                toolkit.records = store
        chosen: dict[str, Any] = {"supersede": supersede}
        if private:
            chosen["public"] = False
        if share:
            chosen["shared_with"] = tuple(share)
        settings = options.resolve()
        lock = read_lock(settings, locked)
        choices = {"instance": instance, "locked": lock, **options.choices()}
        file = _read_policy(policy)
        room = _HostingRoom(chosen, found, policy=file, as_json=options.as_json, **choices)
        logging.basicConfig(format=LOG_FORMAT)
        for name in {name for reference in toolkits for name in logger_names(reference)}:
            show_info_of(name)

        async def serve(end: GracefulShutdown) -> None:
            try:
                async with explain_refusal(settings), room.watching_policy():
                    await read_token(settings)
                    await serve_toolkits(found, room, drain_s, wait=wait, end=end)
            except InvalidOffer as error:
                raise UsageError(str(error)) from error

        # The name of the service in spans, as in `RemoteToolkit.run`.
        service = found[0].name if len(found) == 1 else "toolbus-host"
        with GracefulShutdown(flushing(configure(service), found)) as end:
            event_loop.run(serve(end))


def _read_policy(path: Path | None) -> PolicyFile | None:
    """Read the file of `--policy`. Raises UsageError with the line of a mistake."""
    if path is None:
        return None
    try:
        return PolicyFile(path)
    except RuleFileError as error:
        raise UsageError(str(error)) from error


def _check_share(share: str) -> None:
    kind, colon, name = share.partition(":")
    if share != "*" and "*" in share:
        raise UsageError(f"--share {share[:64]!r} is not valid: {NO_PATTERNS}")
    if share != "*" and not (kind in {"name", "role"} and is_participant_name(name)):
        name = name or ("X" if colon or not kind else kind)
        raise UsageError(
            f"--share {share[:64]!r} is not valid: write name:{name}, role:{name} or '*'"
        )
