"""`toolbus host`: serves toolkits that lie in a module, or that an installed package announces.

A toolkit is named as `module:attribute`, the attribute being a toolkit or a function that makes
one, or by its name in the entry point group `toolbus.toolkits`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import reduce
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from toolbus import event_loop
from toolbus.commands.completion import TOOLKITS, complete_installed
from toolbus.commands.module_names import near_references
from toolbus.commands.outcome import report
from toolbus.commands.plain_words import load_words
from toolbus.commands.room_options import RoomOptions, joins_a_room
from toolbus.errors import Cancelled, PermissionDenied
from toolbus.exit_codes import UsageMistake, exit_code
from toolbus.grants import is_participant_name, is_toolkit_name
from toolbus.host_end import HostEnd
from toolbus.hosted_toolkit import OfferMistake
from toolbus.joining import explaining, read_token
from toolbus.remote_toolkit import serve_toolkits
from toolbus.room_client import RoomClient
from toolbus.telemetry import configure
from toolbus.tool import Tool
from toolbus.toolkit import Toolkit

__all__ = ["TOOLKITS", "find_toolkit", "host"]

_TOOL_MARK = "__toolbus_tool__"  # what `@tool` leaves on a function


@dataclass(frozen=True, slots=True)
class _Visibility:
    """Who sees what is hosted; None leaves it to the toolkit."""

    public: bool | None
    shared_with: tuple[str, ...] | None


class _HostingRoom(RoomClient):
    """A room that says on stdout what it hosts, once others can call it."""

    __slots__ = ("_as_json", "_visibility")

    def __init__(self, visibility: _Visibility, *, as_json: bool, **choices: Any) -> None:
        super().__init__(**choices)
        self._visibility = visibility
        self._as_json = as_json

    @asynccontextmanager
    async def host(
        self,
        toolkit: Toolkit,
        *,
        public: bool | None = None,
        shared_with: Sequence[str] | None = None,
    ) -> AsyncIterator[Toolkit]:
        chosen = self._visibility
        hosted = super().host(
            toolkit,
            public=chosen.public if public is None else public,
            shared_with=chosen.shared_with if shared_with is None else shared_with,
        )
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(hosted)
            except PermissionDenied as error:
                raise self._hinted(error) from None
            facts = {"toolkit": toolkit.name, "room": self.name, "name": self.identity}
            words = "hosting {toolkit} in room {room} as {name}".format(**facts)
            typer.echo(json.dumps(facts) if self._as_json else words)
            yield toolkit

    def _hinted(self, error: PermissionDenied) -> PermissionDenied:
        """Say that a private toolkit may be hosted, where that is what the token grants."""
        grants = self.grants.agents
        may_only_host_private = (
            grants.register_private_toolkit and not grants.register_public_toolkit
        )
        return NotPublic(error) if may_only_host_private else error


class NotPublic(PermissionDenied):
    """A public toolkit is refused to who may host private ones.

    Args:
        error: What the server said.
    """

    next_step = (
        "this token may host private toolkits: add --private, and --share for who else sees them; "
        "`toolbus token create --preset host` makes one for public ones"
    )

    def __init__(self, error: PermissionDenied) -> None:
        super().__init__(error.message, details=error.details)


@joins_a_room
def host(
    options: RoomOptions,
    toolkits: Annotated[
        list[str],
        typer.Argument(
            help="module:attribute, or the name of an installed toolkit.",
            autocompletion=complete_installed,
        ),
    ],
    instance: Annotated[
        str | None, typer.Option(help="Tells replicas of one name apart; random unless said.")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Only I see them, and whom I share them with.")
    ] = False,
    share: Annotated[
        list[str] | None,
        typer.Option(help="Who else sees private ones: name:X, role:X or '*'. Repeat it."),
    ] = None,
    drain_s: Annotated[
        float | None,
        typer.Option("--drain", help="Seconds that calls have to end in; 10 unless said.", min=0),
    ] = None,
) -> None:
    """Host toolkits until SIGTERM or Ctrl-C; calls that run may finish, unless it comes twice."""
    if share and not private:
        raise UsageMistake("--share is for private toolkits: add --private")
    for each in share or ():
        _check_share(each)
    with _given_up(as_json=options.as_json):
        found = [find_toolkit(reference) for reference in toolkits]
        visibility = _Visibility(False if private else None, tuple(share) if share else None)
        choices = {"instance": instance, **options.choices()}
        room = _HostingRoom(visibility, as_json=options.as_json, **choices)
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        with HostEnd(configure(_service_of(found))) as end:
            event_loop.run(_serve(options, room, end, found, drain_s))


def _service_of(toolkits: Sequence[Toolkit]) -> str:
    """Name the service as spans have it: by what it hosts, as `RemoteToolkit.run` does."""
    return toolkits[0].name if len(toolkits) == 1 else "toolbus-host"


@contextmanager
def _given_up(*, as_json: bool) -> Iterator[None]:
    """Say of a host that is ended before it hosts that, and nothing of a call."""
    try:
        yield
    except (KeyboardInterrupt, Cancelled) as error:
        given_up = Cancelled("given up by Ctrl-C", executed="no")
        told = error if isinstance(error, Cancelled) else given_up
        report(told, as_json=as_json, local=True)
        raise typer.Exit(exit_code(told)) from None


def _check_share(share: str) -> None:
    kind, colon, name = share.partition(":")
    if share != "*" and not (kind in {"name", "role"} and is_participant_name(name)):
        who = name or ("X" if colon or not kind else kind)
        raise UsageMistake(
            f"--share {share[:64]!r} names nobody: write name:{who}, role:{who} or '*'"
        )


async def _serve(
    options: RoomOptions,
    room: RoomClient,
    end: HostEnd,
    toolkits: Sequence[Toolkit],
    drain_s: float | None,
) -> None:
    settings = options.settle()
    await read_token(settings)
    try:
        async with explaining(settings):
            await serve_toolkits(toolkits, room, drain_s, end=end)
    except OfferMistake as error:
        raise UsageMistake(str(error)) from error


def find_toolkit(reference: str) -> Toolkit:
    """Return the toolkit that a reference names, making it where it names a function.

    Raises:
        UsageMistake: There is none, or it cannot be made.
    """
    try:
        found = _load(reference)
        _refuse_tool(reference, found)
        made = found if isinstance(found, Toolkit) or not callable(found) else found()
    except UsageMistake:
        raise
    except Exception as error:  # somebody's module: whatever it raises is theirs to repair
        words = f"cannot load {reference}: {load_words(error)}"
        meant = _meant(reference) if _is_missing(reference, error) else ""
        raise UsageMistake(f"{words}: {meant}" if meant else words) from error
    if not isinstance(made, Toolkit):
        raise UsageMistake(
            f"{reference} is a {type(made).__name__}, and no toolkit or function that makes one"
        )
    return made


def _load(reference: str) -> Any:
    module, colon, attribute = reference.partition(":")
    if not colon:
        return _load_announced(reference)
    if not module or not attribute:
        raise UsageMistake(f"{reference!r} names no toolkit: write module:attribute")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return reduce(getattr, attribute.split("."), importlib.import_module(module))


def _load_announced(name: str) -> Any:
    announced = {entry.name: entry for entry in entry_points(group=TOOLKITS)}
    if name not in announced:
        others = f"write module:attribute, or one of {', '.join(sorted(announced))}"
        words = _meant(name) or others
        raise UsageMistake(f"no installed toolkit is called {name!r}: {words}")
    return announced[name].load()


def _is_missing(reference: str, error: Exception) -> bool:
    """Whether the module itself, or what it is to have, is not there; and not what it imports."""
    module, _, attribute = reference.partition(":")
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return error.obj.__name__ == module and error.name == attribute.partition(".")[0]
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return name is not None and (module == name or module.startswith(f"{name}."))


def _meant(reference: str) -> str:
    """Say what lies in this folder and may have been meant; empty if nothing does."""
    found = near_references(reference, Path.cwd())
    return f"did you mean {' or '.join(found)}?" if found else ""


def _refuse_tool(reference: str, found: Any) -> None:
    """Refuse what would run if it were called. Raises UsageMistake."""
    if not _is_tool(found):
        return
    module, colon, name = reference.partition(":")
    if not colon:
        raise UsageMistake(f"what is installed as {reference} is a tool, and no toolkit")
    last = module.rpartition(".")[2]
    toolkit = last if is_toolkit_name(last) else "tools"
    words = (
        f"{name} is a tool, and no toolkit: write {module}:NAME of a Toolkit, "
        f'e.g. `tools = Toolkit("{toolkit}", [{name}])`'
    )
    meant = _meant(module)
    raise UsageMistake(f"{words}; {meant}" if meant else words)


def _is_tool(found: Any) -> bool:
    """Whether it is a tool, or a function that makes no toolkit: marked, async, with parameters."""
    if isinstance(found, Tool) or hasattr(found, _TOOL_MARK):
        return True
    if not inspect.isroutine(found) or inspect.isbuiltin(found):
        return False
    if "Toolkit" in str(getattr(found, "__annotations__", {}).get("return", "")):
        return False
    return inspect.iscoroutinefunction(found) or any(
        each.default is each.empty and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
        for each in inspect.signature(found).parameters.values()
    )
