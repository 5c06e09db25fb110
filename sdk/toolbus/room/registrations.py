"""What one participant publishes, kept for the next connection: toolkits, attributes, builders.

A server moves the toolkits of the old connection to the new one. An unregister request whose reply
was lost is therefore sent again. A registration that fails for now, for instance because the server
cannot reach Redis, is tried again as long as the connection lasts. The log says when another
definition of a toolkit serves instead of the one here.

Of attributes and builders the server may have kept those of the old connection or not. Therefore
all of them are published again, so that both sides agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import uniform
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.json_values import packed_json
from toolbus.client.caller import REPLY_TIMEOUT_S, Caller
from toolbus.errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidArguments,
    NotFound,
    RoomException,
    Unavailable,
)
from toolbus.hosting.hosted_toolkit import (
    Definitions,
    HostedToolkit,
    InvalidOffer,
    check_shared_with,
)
from toolbus.room.participants import BuilderInfo
from toolbus.tools.toolkit import Toolkit
from toolbus.wire import (
    MAX_ATTRIBUTES_BYTES,
    Attributes,
    Builders,
    Notice,
    Register,
    Unregister,
    pack_body,
    unpack_body,
)

__all__ = [
    "PublishedAttributes",
    "Registration",
    "Registrations",
    "checked_offer",
    "checked_supersede",
]

_logger = bounded_logger(__name__)
_FIRST_REPLY_TIMEOUT_S = 30.0
_SERVING = "serving"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0


@dataclass(slots=True, eq=False)
class Registration:
    """A toolkit and the options it is registered with, now and after every reconnect."""

    hosted: HostedToolkit
    """The toolkit with its host-side state."""
    manifest: bytes
    """Its packed manifest."""
    shared_with: list[str]
    """Who else sees a private toolkit."""
    supersede: bool | None = None
    """Whether it takes over from other definitions (True) or is refused beside them (False)."""
    generation: int | None = None
    """The generation that the server replied at the last registration."""
    base: int | None = None
    """The base of that generation."""
    is_serving: bool | None = None
    """Whether calls go to this definition; None if the server has not said so."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the register request."""
        options: dict[str, Any] = {"public": self.hosted.public}
        if self.shared_with:
            options["shared_with"] = self.shared_with
        if self.supersede is not None:
            options["supersede"] = self.supersede
        if self.generation is not None:
            options["generation"] = self.generation
        if self.base is not None:
            options["base"] = self.base
        return options

    def apply(self, report: Mapping[str, Any]) -> None:
        """Apply the reply of a registration, or a notice of the server about the toolkit.

        What it says about serving is logged if it is new.
        """
        self.generation, self.base = report.get("generation"), report.get("base")
        self.hosted.digest = str(report.get("digest", self.hosted.digest))
        is_serving, was_serving = report.get("serving"), self.is_serving
        self.is_serving = is_serving
        name = self.hosted.toolkit.name
        if is_serving is None and self.supersede is not None:
            _logger.warning("toolkit %s: this server is older and ignores `supersede`", name)
        elif is_serving and was_serving is False:
            _logger.info("toolkit %s: this definition serves now", name)
        elif is_serving is False and was_serving is not False:
            instead = report.get("instead", {})
            version = str(instead.get("version", ""))
            shown = f"version {version}" if version else "a definition without a version"
            shown = f"{shown} (digest {str(instead.get('digest', ''))[:12]})"
            if was_serving:
                text = (
                    "toolkit %s: this definition has been superseded and gets no calls: %s serves"
                )
            else:
                text = (
                    "toolkit %s: this definition joins the reserve and gets no calls: %s serves; "
                    "raise its version (PEP 440, such as 1.1), or host it with supersede=True "
                    "(--supersede)"
                )
            _logger.warning(text, name, shown)


def checked_offer(
    toolkit: Toolkit, public: bool | None, shared_with: Sequence[str] | None
) -> tuple[bool, list[str]]:
    """Return who sees a toolkit: whether it is public, and with whom a private one is shared.

    Args:
        toolkit: Its own attributes count where the other arguments are None.
        public: Whether the whole room sees it.
        shared_with: Who else sees a private toolkit.

    Raises:
        InvalidOffer: A public toolkit is shared, or a value has the wrong type.
        TypeError: The first argument is not a toolkit.
    """
    if not isinstance(toolkit, Toolkit):
        raise TypeError(f"host takes one Toolkit(name, tools), not {type(toolkit).__name__}")
    is_public = getattr(toolkit, "public", True) if public is None else public
    shares = getattr(toolkit, "shared_with", ()) if shared_with is None else shared_with
    if not isinstance(is_public, bool):
        raise InvalidOffer(f"toolkit {toolkit.name!r}: public must be True or False")
    check_shared_with(toolkit.name, shares)
    if is_public and shares:
        raise InvalidOffer(
            f"toolkit {toolkit.name!r} is public: only a private toolkit can be shared"
        )
    return is_public, [str.__str__(share) for share in shares]


def checked_supersede(toolkit: Toolkit, supersede: bool | None) -> bool | None:
    """Return whether a toolkit takes over from other definitions; None of both is its own setting.

    Raises InvalidOffer for anything but True, False and None.
    """
    chosen = getattr(toolkit, "supersede", None) if supersede is None else supersede
    if chosen is not None and not isinstance(chosen, bool):
        raise InvalidOffer(f"toolkit {toolkit.name!r}: supersede must be True, False or None")
    return chosen


class _Exchange:
    """One replacement of a registered definition, from its request to its reply."""

    def __init__(
        self,
        definitions: Definitions,
        old: Registration,
        new: Registration,
        active: list[Registration],
    ) -> None:
        self._definitions = definitions
        self._active = active
        self.old: Registration = old
        self.new: Registration = new
        self.is_asked: bool = False
        """Whether the server was asked on the current connection."""
        self._was_asked = False

    def ask(self, *fields: Any) -> Register:
        """Make the request, which is sent at once."""
        self.is_asked = self._was_asked = True
        self._definitions.request(self.old.hosted)
        return Register(*fields)

    def on_result(self, connection: object | None) -> None:
        """Switch to the new definition."""
        if self._definitions.accept(self.old.hosted, self.new.hosted, connection):
            self._active[self._active.index(self.old)] = self.new

    def is_refused_by(self, error: BaseException) -> bool:
        """Whether after this error the server has the old definition for sure."""
        if not self._was_asked:
            return True
        is_reply = isinstance(error, RoomException) and not isinstance(
            error, ConnectionLost | DeadlineExceeded
        )
        return is_reply and self.is_asked


class Registrations:
    """The registrations of one participant."""

    def __init__(self, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
        self._caller = caller
        self._loop = loop
        self._active: list[Registration] = []
        self._unregistering: set[tuple[str, bool]] = set()
        """Unregistered toolkits, as (name, public), that the server may still hold."""
        self._adding: list[tuple[str, bool]] = []
        """Toolkits that are being registered for the first time, as (name, public)."""
        self._retrying: dict[Registration, asyncio.Task[None]] = {}
        """Registrations that failed on the current connection, with the task that tries again."""
        self.is_draining: bool = False
        """Set for good when this participant drains.

        From then on nothing is registered and nothing unregistered, so that the server keeps the
        names for the next process.
        """

    async def add(self, registration: Registration) -> None:
        """Register a toolkit; if the connection is lost meanwhile, on the next one.

        Raises:
            RoomException: The server refuses it, or there is no reply within 30 s.
        """
        self._check_accepts()
        self._adding.append(registration.hosted.key)
        try:
            body = await self._register(registration)
        finally:
            self._adding.remove(registration.hosted.key)
        self._unregistering.discard(registration.hosted.key)
        self._apply(registration, body)
        self._active.append(registration)

    async def _register(self, registration: Registration) -> dict[str, Any]:
        """Send the request until there is a reply. The request is idempotent."""
        deadline_at = self._loop.time() + _FIRST_REPLY_TIMEOUT_S
        while True:
            left_s = deadline_at - self._loop.time()
            try:
                return await self._caller.request(
                    Register, registration.manifest, registration.options, timeout_s=left_s
                )
            except ConnectionLost:
                if self._loop.time() >= deadline_at:
                    raise

    async def replace(self, old: Registration, new: Registration, definitions: Definitions) -> None:
        """Register another definition in place of one that is registered.

        The reply switches what `definitions` finds. After an error the old one is served, and
        registered again if the server may have the new one; `is_active` says which it is.

        Raises:
            RoomException: The server refuses it, or there is no reply within 30 s.
        """
        self._check_accepts()
        is_retrying = old in self._retrying
        if is_retrying:
            self._retrying.pop(old).cancel()
        exchange = _Exchange(definitions, old, new, self._active)
        try:
            body = await self._exchange(exchange)
        except BaseException as error:
            if not self.is_active(new):
                if exchange.is_refused_by(error):
                    definitions.confirm(old.hosted)
                else:
                    definitions.doubt(old.hosted)
                    is_retrying = True
                if is_retrying:
                    self._start_retry(old, definitions, pause_s=0)
            raise
        self._apply(new, body)

    async def _exchange(self, exchange: _Exchange) -> dict[str, Any]:
        """Ask until the new definition is accepted on the newest connection; return the reply."""
        deadline_at = self._loop.time() + _FIRST_REPLY_TIMEOUT_S
        new = exchange.new
        body: dict[str, Any] = {}
        while not self.is_active(new):
            exchange.is_asked = False
            left_s = deadline_at - self._loop.time()
            fields = new.manifest, new.options
            try:
                body = await self._caller.request(
                    exchange.ask, *fields, timeout_s=left_s, on_result=exchange.on_result
                )
            except ConnectionLost:
                if self._loop.time() >= deadline_at:
                    raise
        return body

    def is_active(self, registration: Registration) -> bool:
        """Whether it is registered, now and after every reconnect."""
        return registration in self._active

    def _check_accepts(self) -> None:
        if self.is_draining:
            raise Unavailable("this participant is draining", executed="no", retryable=False)

    def on_notice(self, notice: Notice) -> None:
        """React to the notice that a definition serves from now on, or no longer serves."""
        if notice.name == _SERVING:
            # After the task that waits for a reply which arrived before it.
            self._loop.call_soon(self._apply_notice, notice)

    def _apply_notice(self, notice: Notice) -> None:
        key = notice.data.get("toolkit"), notice.data.get("public")
        for registration in self._active:
            if registration.hosted.key == key:
                registration.apply(notice.data)

    async def unregister(self, registration: Registration, *, is_ready: bool) -> None:
        """Unregister a toolkit: now if the connection is ready, else on the next connection."""
        if registration in self._active:
            self._active.remove(registration)
        registration.hosted.grants.end()
        if self.is_draining:
            return
        if is_ready:
            await self._unregister(registration.hosted.key)
        else:
            self._unregistering.add(registration.hosted.key)

    def end(self) -> None:
        """Stop all retries."""
        for task in self._retrying.values():
            task.cancel()
        self._retrying.clear()

    async def replay(self, deadline_at: float, definitions: Definitions) -> None:
        """Register on the new connection what was registered on the old one."""
        self.end()
        for registration in list(self._active):
            # It may be unregistered, or this participant may drain, while others are registered.
            if registration in self._active and not self.is_draining:
                if not await self._register_once(registration, deadline_at, definitions):
                    name = registration.hosted.toolkit.name
                    _logger.warning("toolkit %s could not be registered yet: trying again", name)
                    self._start_retry(registration, definitions, pause_s=_FIRST_PAUSE_S)

    async def retry_unregister(self) -> None:
        """Unregister what the server moved to the new connection although it is not hosted."""
        for key in list(self._unregistering):
            await self._unregister(key)

    def _start_retry(
        self, registration: Registration, definitions: Definitions, *, pause_s: float
    ) -> None:
        retrying = self._retry(registration, definitions, pause_s)
        self._retrying[registration] = self._loop.create_task(retrying)

    async def _retry(
        self, registration: Registration, definitions: Definitions, pause_s: float
    ) -> None:
        while True:
            await asyncio.sleep(uniform(0.5, 1.0) * pause_s)
            pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            if registration not in self._active or self.is_draining:
                break
            deadline_at = self._loop.time() + REPLY_TIMEOUT_S
            if await self._register_once(registration, deadline_at, definitions):
                key = registration.hosted.key
                wanted = [*self._adding, *(active.hosted.key for active in self._active)]
                if key not in wanted:  # it was unregistered meanwhile
                    await self._unregister(key)
                break
        self._retrying.pop(registration, None)

    async def _register_once(
        self, registration: Registration, deadline_at: float, definitions: Definitions
    ) -> bool:
        """Register once; return whether the outcome is final, success or refusal."""
        fields = registration.manifest, registration.options
        registration.hosted.grants.withdraw()  # what is listed belongs to the former connection
        confirm = partial(definitions.confirm, registration.hosted)
        try:
            body = await self._caller.ask(
                Register, *fields, deadline_at=deadline_at, on_result=confirm
            )
            self._apply(registration, body)
        except RoomException as error:
            if error.retryable or isinstance(error, ConnectionLost | DeadlineExceeded):
                return False
            name = registration.hosted.toolkit.name
            _logger.error("toolkit %s is no longer hosted: %s", name, error)
        return True

    def _apply(self, registration: Registration, body: Mapping[str, Any]) -> None:
        """Apply the reply of a registration, and list what is granted for the toolkit."""
        registration.apply(body)
        hosted = registration.hosted
        hosted.grants.list_at(
            self._caller.ask_person, hosted.toolkit, hosted.digest, public=hosted.public
        )

    async def _unregister(self, key: tuple[str, bool]) -> None:
        """Unregister a toolkit; after a failure the next connection tries again."""
        self._unregistering.add(key)
        deadline_at = self._loop.time() + REPLY_TIMEOUT_S
        try:
            await self._caller.ask(Unregister, *key, deadline_at=deadline_at)
        except NotFound:
            pass  # it is already unregistered
        except RoomException:
            return
        self._unregistering.discard(key)


class PublishedAttributes:
    """The published attributes and builders of one participant."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._attributes: dict[str, Any] = {}
        self._unconfirmed: set[str] = set()
        """Names of attributes whose change had no reply."""
        self._offers: list[dict[str, Any]] | None = None

    async def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Change some attributes; None removes one.

        Raises:
            InvalidArguments: They are not JSON, too many or too long; nothing has changed.
            RoomException: The request failed.
        """
        # A copy, so that later changes by the program are not published by `replay`.
        changes: dict[str, Any] = unpack_body(packed_json("attributes", dict(attributes)))
        present = {name: value for name, value in changes.items() if value is not None}
        if len(pack_body(present)) > MAX_ATTRIBUTES_BYTES:
            words = f"attributes have at most {MAX_ATTRIBUTES_BYTES} bytes together"
            details = {"path": "/attributes", "message": words}
            raise InvalidArguments(words, details=details)
        try:
            await self._caller.request(Attributes, changes)
        except BaseException as error:
            if _may_be_applied(error):
                self._unconfirmed |= changes.keys()
            raise
        merged = {**self._attributes, **changes}
        self._attributes = {name: value for name, value in merged.items() if value is not None}
        self._unconfirmed -= changes.keys()

    async def offer_builders(self, builders: Iterable[BuilderInfo]) -> None:
        """Publish the toolkits that are built on request; replaces the previous list.

        Raises:
            InvalidArguments: One is not a `BuilderInfo`, or its name or JSON Schema is invalid.
            RoomException: The request failed.
        """
        offered = tuple(builders) if isinstance(builders, Iterable) else (None,)
        if not all(isinstance(builder, BuilderInfo) for builder in offered):
            maker = "toolbus.turns.builders.builder_infos"
            raise InvalidArguments(f"builders are offered as BuilderInfo: {maker} makes them")
        packed = packed_json("offer", [builder.to_wire() for builder in offered])
        offers: list[dict[str, Any]] = unpack_body(packed)
        try:
            await self._caller.request(Builders, {"offer": offers})
        except BaseException as error:
            if _may_be_applied(error) and self._offers is None:
                self._offers = []
            raise
        self._offers = offers

    async def replay(self, deadline_at: float) -> None:
        """Publish everything on the new connection."""
        attributes = {**dict.fromkeys(self._unconfirmed), **self._attributes}
        try:
            if attributes:
                await self._caller.ask(Attributes, attributes, deadline_at=deadline_at)
                self._unconfirmed.clear()
            if self._offers is not None:
                options = {"offer": self._offers}
                await self._caller.ask(Builders, options, deadline_at=deadline_at)
        except RoomException as error:
            _logger.error("attributes and builders could not be published again: %s", error)


def _may_be_applied(error: BaseException) -> bool:
    """Whether the server may have carried out a request that ended with this error."""
    return not isinstance(error, RoomException) or error.executed != "no"
