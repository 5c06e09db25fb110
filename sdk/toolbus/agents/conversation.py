"""The conversations of an agent: one for each asker and name, each with one question at a time.

An asker is a caller and the principal that it acts for: what an agent asks for one user is not
a part of what it asks for another, or for itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from operator import is_
from types import ModuleType
from typing import Final, NamedTuple

from toolbus.agents.state_store import MAX_STATE_CHARS, Entry, StateStore, asker_of, beyond_shares
from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.file_io import FILE_THREADS
from toolbus.chunks.json_values import cut, plain_json
from toolbus.errors import (
    InvalidArguments,
    InvalidResult,
    NotFound,
    Overloaded,
    RoomException,
    Unavailable,
)
from toolbus.models.adapter import Adapter, Plain
from toolbus.tools.tool_run import Participant
from toolbus.turns.agent_state import AgentState
from toolbus.turns.parking import AnswerProgress

__all__ = [
    "FORGOTTEN",
    "MAX_CONVERSATION_BYTES",
    "Conversation",
    "ConversationUnavailable",
    "Conversations",
    "adapter_name",
    "conversation_key",
]

_logger = bounded_logger(__name__)

MAX_CONVERSATION_BYTES: Final = 8 * 1024 * 1024
"""Of the messages of a conversation, as JSON, unless an agent says otherwise.

Above the text that any model reads at once, some two million tokens, so that it is for agents to
choose less; and such that a question about the photo of the question before still has the photo.
"""
MAX_WAITING: Final = 16
"""Questions that wait for one conversation. They are answered one after the other, each in seconds:
who asks more at a time is served better by more conversations."""
# Conversations in memory, and the JSON of their messages; objects and JSON take some three times as
# much. Beyond it the asker who has the most loses the one that it used least recently. It is read
# again from a store, or forgotten.
_MAX_CONVERSATIONS = 1_000
_MAX_TOTAL_BYTES = 128 * 1024 * 1024
_MAX_FORGOTTEN = 50_000
"""Forgotten conversations whose askers learn that they are forgotten; some 10 MB. Beyond it the
asker who has the most of them loses its oldest ones."""
_WARN_EVERY_S = 60.0
FORGOTTEN: Final = (
    "the conversation so far was forgotten to make room for newer ones: it begins anew"
)
"""Why a model does not see a conversation that was beyond the share of its asker."""


class ConversationUnavailable(Unavailable):
    """A conversation cannot be read, or takes no question while uses of it are parked.

    `details` has the name of the `conversation` and a `reason`. Its stored state stays as it is: a
    newer version of toolbus may have written it.
    """

    next_step: str = (
        "use the version of toolbus that wrote it, give the results that it waits for"
        " (`Agent.resume`), or let the agent `forget` the conversation"
    )


def conversation_key(caller: Participant, principal: Participant | None, name: str) -> str:
    """Return the key of a conversation: who asks, for whom, and its name."""
    asker = [caller.issuer, caller.name]
    for_whom = None if principal is None else [principal.issuer, principal.name]
    return json.dumps([asker, for_whom, name])


def adapter_name(adapter: Adapter) -> str:
    """Return by which name a state tells the words of an adapter.

    A module is called as its file if it is one of `toolbus.models`, such as "anthropic", and by its
    full name otherwise; any other object by its class, with the module.
    """
    if isinstance(adapter, ModuleType):
        name = adapter.__name__
    else:
        name = f"{type(adapter).__module__}.{type(adapter).__qualname__}"
    return name.removeprefix("toolbus.models.")


class _StoredMessages(NamedTuple):
    """Messages as they are stored: lists of one length, so that each is used as a whole."""

    messages: list[object]
    """The messages themselves: another one in the place of one of these is measured anew."""
    texts: list[str]
    """Each as JSON; empty for one that is not JSON."""
    sizes: list[int]
    """The bytes of each text."""

    def copy(self) -> _StoredMessages:
        """Return the same in other lists."""
        return _StoredMessages(*([*values] for values in self))

    def delete(self, which: slice) -> None:
        for values in self:
            del values[which]

    def add(self, message: object) -> None:
        text = ""
        with suppress(InvalidResult):  # a message of an adapter that is not ours
            text = json.dumps(plain_json(message), ensure_ascii=False)
        self.messages.append(message)
        self.texts.append(text)
        self.sizes.append(len(text) if text.isascii() else len(text.encode()))


class _Snapshot(NamedTuple):
    """A conversation before a question, which takes its place again if nothing answers that."""

    adapter: str
    model: str
    conversation: list[Plain]
    questions: list[int]
    stored: _StoredMessages


@dataclass(slots=True, eq=False)
class Conversation:
    """One conversation.

    No message is changed: others are appended, by `begin` and by the loop, take the place of the
    last ones, or are left out at the front. So each is made JSON once, and neither the size of a
    conversation nor its state costs that again.
    """

    key: str
    state: AgentState = field(default_factory=AgentState)
    max_bytes: int = MAX_CONVERSATION_BYTES
    """Of its messages; beyond it the oldest questions are left out, with all that followed them."""
    is_loaded: bool = False
    """Whether `state` is what the store has."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a question of it is answered."""
    users: int = 0
    """Questions that are answered or wait for the lock."""
    dropped: str = ""
    """Why the model does not see what came before the question; empty unless it was changed for
    this question."""
    is_forgotten: bool = False
    """Whether all of it was forgotten to make room, until a question is answered."""
    bytes: int = 0
    """Of its messages, as JSON."""
    saved: object = None
    """The last message when the state was stored last."""
    is_stored: bool = True
    """Whether the last attempt to store the state has succeeded."""
    saving: asyncio.Task[None] | None = None
    """Stores the state while a question is answered."""
    _stored: _StoredMessages = field(default_factory=lambda: _StoredMessages([], [], []))
    _snapshot: _Snapshot | None = None

    @property
    def name(self) -> str:
        """The name that the asker gave it."""
        return str(json.loads(self.key)[2])

    @property
    def is_idle(self) -> bool:
        """Whether nobody uses it, and nothing of it is being stored."""
        return not self.users and (self.saving is None or self.saving.done())

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it that could be forgotten."""
        state = self.state
        return not (
            state.conversation or state.groups or len(state.rules) or any(state.state.values())
        )

    @property
    def is_answered(self) -> bool:
        """Whether anything follows the last question."""
        questions = self.state.questions
        return not questions or len(self.state.conversation) > questions[-1] + 1

    @property
    def has_grown(self) -> bool:
        """Whether messages came since the state was stored; a question alone does not count."""
        messages = self.state.conversation
        return bool(messages) and messages[-1] is not self.saved and self.is_answered

    def check_waits_for(self, what: str) -> None:
        """Check that it waits for what comes: a "question", or "results" of parked uses.

        Raises `ConversationUnavailable` for a question while uses are parked, and `NotFound` for
        results if none are. Anything else may come at any time.
        """
        step = self.state.parked
        if what == "results" and step is None:
            raise NotFound(f"no use is parked in the conversation {self.name!r}")
        if what == "question" and step is not None:
            tools = ", ".join(sorted({use.tool for use in step.open})) or "to be resumed"
            reason = f"it waits for the results of parked uses ({cut(tools)})"
            raise _unavailable(self, reason, retryable=False, can="go on")

    def begin(self, adapter: Adapter, question: Plain, model: str = "") -> None:
        """Append a question, and leave out what cannot be sent with it; `dropped` says why.

        A conversation in the words of another adapter is left out as a whole. So is all of it if
        the question alone is larger than the limit: then it is asked alone, and left out before
        the next one. Of another model of the same adapter only the thoughts are left out;
        `model_identity` returns what `model` is.
        """
        state = self.state
        words = adapter_name(adapter)
        self._snapshot = _Snapshot(
            state.adapter,
            state.model,
            [*state.conversation],
            [*state.questions],
            self._stored.copy(),
        )
        self.dropped = FORGOTTEN if self.is_forgotten else ""
        if state.conversation and state.adapter not in ("", words):
            self.dropped = (
                f"the conversation so far is in the words of another model ({state.adapter}, not"
                f" {words}): it begins anew"
            )
            _logger.warning("conversation %s: %s", self.key, self.dropped)
            self._leave_out(len(state.conversation))
        elif state.model != model:
            self._make_portable(adapter)
        state.adapter = words
        state.model = model
        state.questions.append(len(state.conversation))
        state.conversation.append(question)
        count = len(state.conversation)
        self.cut()
        if left_out := count - len(state.conversation):
            self.dropped = (
                f"the oldest {left_out} messages are left out: a conversation has at most"
                f" {self.max_bytes} bytes"
            )
            _logger.info("conversation %s: %s", self.key, self.dropped)

    def resume(self, progress: AnswerProgress, adapter: Adapter, model: str = "") -> None:
        """Go on with a parked step; as `begin`, thoughts of another model are left out.

        Raises `ConversationUnavailable` if it is in the words of another adapter.
        """
        state = self.state
        words = adapter_name(adapter)
        if state.adapter != words:
            reason = f"it waits in the words of another model ({state.adapter}, not {words})"
            raise _unavailable(self, reason, retryable=False, can="go on")
        if state.model == model:
            return
        start = max(0, len(state.conversation) - progress.messages)
        step = state.conversation[start:]  # made anew when it goes on
        del state.conversation[start:]
        self._make_portable(adapter)
        state.conversation += step
        progress.is_portable = True
        state.model = model

    def end(self) -> None:
        """Cut the conversation, or take the question back if nothing answers it."""
        snapshot, self._snapshot = self._snapshot, None
        if self.is_answered or snapshot is None:
            self.is_forgotten = False
            self.cut()
            return
        self.state.adapter = snapshot.adapter
        self.state.model = snapshot.model
        self.state.conversation[:] = snapshot.conversation
        self.state.questions[:] = snapshot.questions
        self.take(self.state, snapshot.stored)

    def cut(self) -> None:
        """Leave out the oldest questions while there are too many bytes, but never the last one.

        A question is left out with all that follows it up to the next one, so that each use of a
        tool keeps its result.
        """
        self._measure()
        left = self.bytes
        count = 0
        for start in self.state.questions:
            if left <= self.max_bytes:
                break
            left -= sum(self._stored.sizes[count:start])
            count = start
        if count:
            self._leave_out(count)

    def text(self) -> str:
        """Return the state as JSON. Raises `InvalidArguments` for what is not JSON in it."""
        self._measure()
        texts = self._stored.texts
        if "" in texts:
            path = f"/conversation/{texts.index('')}"
            text = f"a message of the conversation is not JSON: {path}"
            raise InvalidArguments(text, details={"path": path})
        return self.state.json_with(texts)

    def take(self, state: AgentState, stored: _StoredMessages | None = None) -> None:
        """Take a state in place of the former one; `stored` has its messages if that is known."""
        self.state = state
        self.is_loaded = True
        self._stored = stored or _StoredMessages([], [], [])
        self.bytes = sum(self._stored.sizes)

    def _measure(self) -> None:
        """Make JSON of the messages that have come since."""
        messages = self.state.conversation
        stored = self._stored
        known = len(stored.messages)
        # Each time for all messages, but without a step of Python for each.
        if known > len(messages) or not all(map(is_, stored.messages, messages)):
            pairs = zip(stored.messages, messages, strict=False)
            known = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
            stored.delete(slice(known, None))
        elif known == len(messages):
            return
        for message in messages[known:]:
            stored.add(message)
        self.bytes = sum(stored.sizes)

    def _make_portable(self, adapter: Adapter) -> None:
        """Leave out what another model of the adapter does not take."""
        state = self.state
        made: list[Plain] = []
        starts: list[int] = []
        for start, end in pairwise([0, *state.questions, len(state.conversation)]):
            starts.append(len(made))
            made += adapter.portable(state.conversation[start:end])
        state.conversation[:] = made
        state.questions[:] = starts[1:]

    def _leave_out(self, count: int) -> None:
        self._stored.delete(slice(count))
        self.bytes = sum(self._stored.sizes)
        del self.state.conversation[:count]
        questions = self.state.questions
        questions[:] = [index - count for index in questions if index >= count]


def _read(text: str) -> tuple[AgentState, _StoredMessages]:
    """Read a stored state, and its messages. Raises `InvalidArguments`."""
    if len(text) > MAX_STATE_CHARS:
        raise InvalidArguments(f"a state has at most {MAX_STATE_CHARS} characters")
    state = AgentState.from_json(text)
    stored = _StoredMessages([], [], [])
    for number, message in enumerate(state.conversation):
        if not isinstance(message, dict):  # an agent keeps messages of adapters only
            raise InvalidArguments(f"/conversation/{number}: must be an object")
        stored.add(message)
    return state, stored


class Conversations:
    """All conversations of an agent.

    A state that cannot be stored costs no answer: the log tells it, at most once a minute, and the
    next step stores it too. One that cannot be read is never replaced: its questions are refused.

    Args:
        store: Where their states are stored; without one they end with the agent.
        max_bytes: Of the messages of each.
    """

    def __init__(self, store: StateStore | None, max_bytes: int = MAX_CONVERSATION_BYTES) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._forgotten: dict[bytes, str] = {}
        """The askers of forgotten conversations that no store has, by digests, the oldest first."""
        self._has_warned = False
        self._warn_at = 0.0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Read from the store once, and close it at the end.

        So a store that cannot be used is an error when an agent starts, not of its first question.
        Raises what the store raises.
        """
        for conversation in self._conversations.values():
            if not conversation.lock.locked():
                conversation.lock = asyncio.Lock()  # the former one may belong to another loop
        if self._store is None:
            yield
            return
        await self._store.load("")
        try:
            yield
        finally:
            await self._store.aclose()

    @asynccontextmanager
    async def using(self, key: str, *, load: bool = True) -> AsyncIterator[Conversation]:
        """Wait until no other question of the conversation is answered, and hold it.

        Without `load` its state is not read: so one that cannot be read can be forgotten.

        Raises `Overloaded` if too many questions wait for it, and `ConversationUnavailable`.
        """
        found = self._conversations.get(key)
        if found is None:
            found = self._conversations[key] = Conversation(key, max_bytes=self._max_bytes)
        elif found.users > MAX_WAITING:
            raise Overloaded(
                f"{MAX_WAITING} questions wait for this conversation: ask in another one, or later"
            )
        found.users += 1
        try:
            async with found.lock:
                if load and not found.is_loaded:
                    await self._load(found)
                yield found
        finally:
            found.users -= 1
            self._leave_out(found)

    def save_soon(self, conversation: Conversation) -> None:
        """Begin to store the state if messages came since, and do not wait for it.

        An answer need not wait for a disk at each of its steps. What comes while one state is
        stored is in the next one.
        """
        if self._store is None or not conversation.has_grown:
            return
        if conversation.saving is None or conversation.saving.done():
            conversation.saving = asyncio.create_task(self._save_growth(conversation))

    @asynccontextmanager
    async def reading(self, key: str) -> AsyncIterator[Conversation]:
        """Do as `using`, but beside a question that is answered now; the block changes nothing."""
        found = self._conversations.get(key)
        if found is None or not (found.is_loaded and found.lock.locked()):
            async with self.using(key) as found:
                yield found
            return
        found.users += 1
        try:
            yield found
        finally:
            found.users -= 1
            self._leave_out(found)

    async def save(self, conversation: Conversation) -> None:
        """Store the state of a conversation, if there is a store, and wait until it is stored."""
        saving = conversation.saving
        if saving is not None and not saving.done():  # a store gets the states of a key one by one
            await asyncio.wait([saving])
        await self._save(conversation)

    async def _save_growth(self, conversation: Conversation) -> None:
        while conversation.has_grown:
            await self._save(conversation)

    async def _save(self, conversation: Conversation) -> None:
        if self._store is None or conversation.is_empty:
            return
        messages = conversation.state.conversation
        conversation.saved = next(reversed(messages), None)
        try:
            await self._store.save(conversation.key, conversation.text())
            conversation.is_stored = True
        except Exception as error:
            conversation.is_stored = False
            now = time.monotonic()
            if now >= self._warn_at:
                self._warn_at = now + _WARN_EVERY_S
                _logger.warning("conversation %s is not stored: %s", conversation.key, error)

    async def forget(self, conversation: Conversation) -> None:
        """Begin a conversation anew, and delete its stored state.

        Raises `Unavailable` if the store fails.
        """
        if self._store is not None:
            try:
                await self._store.delete(conversation.key)
            except Exception as error:
                _logger.warning("conversation %s is not forgotten: %s", conversation.key, error)
                reason = _reason_of(error)
                text = f"the conversation is not forgotten: {reason}"
                raise Unavailable(text, details={"reason": reason}) from error
        self._forgotten.pop(_digest(conversation.key), None)
        conversation.is_forgotten = False
        conversation.take(AgentState())

    async def _load(self, conversation: Conversation) -> None:
        text = None
        if self._store is not None:
            try:
                text = await self._store.load(conversation.key)
            except Exception as error:
                _logger.warning("conversation %s cannot be read: %s", conversation.key, error)
                raise _unavailable(conversation, _reason_of(error), retryable=True) from error
        conversation.is_forgotten = text == "" or _digest(conversation.key) in self._forgotten
        if not text or conversation.is_forgotten:
            conversation.take(AgentState())
            return
        try:
            # The thread changes nothing: it goes on if this question is cancelled.
            state, stored = await FILE_THREADS.run(_read, text)
        except InvalidArguments as error:
            _logger.warning("conversation %s cannot be read: %s", conversation.key, error)
            raise _unavailable(conversation, error.message, retryable=False) from error
        conversation.take(state, stored)
        conversation.cut()

    def _leave_out(self, used: Conversation) -> None:
        self._conversations.move_to_end(used.key)
        if not used.is_empty:
            self._forgotten.pop(_digest(used.key), None)
        elif used.is_idle:
            del self._conversations[used.key]
        total = sum(conversation.bytes for conversation in self._conversations.values())
        if len(self._conversations) <= _MAX_CONVERSATIONS and total <= _MAX_TOTAL_BYTES:
            return
        # What is used now counts as the newest of its asker, and stays.
        newest_first = [*reversed(self._conversations.values())]
        newest_first.sort(key=lambda conversation: conversation.is_idle)
        entries = [
            Entry(conversation, asker_of(conversation.key), conversation.bytes)
            for conversation in newest_first
        ]
        for conversation, *_ in beyond_shares(entries, _MAX_CONVERSATIONS, _MAX_TOTAL_BYTES):
            if conversation.is_idle:
                del self._conversations[conversation.key]
                self._forget_unstored(conversation)

    def _forget_unstored(self, conversation: Conversation) -> None:
        """Remember that a conversation has left the memory, unless a store has it."""
        if conversation.is_empty or (self._store is not None and conversation.is_stored):
            return
        self._forgotten[_digest(conversation.key)] = asker_of(conversation.key)
        if len(self._forgotten) > _MAX_FORGOTTEN:
            entries = [Entry(*item, 0) for item in reversed(self._forgotten.items())]
            # A tenth at once: to look at all of them takes some tens of milliseconds.
            for digest, *_ in beyond_shares(entries, _MAX_FORGOTTEN * 9 // 10, 0):
                del self._forgotten[digest]
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "conversation %s is forgotten: there are more than %d, or %d bytes, and its asker"
                " has the most; with store= an agent reads such a conversation again",
                *(conversation.key, _MAX_CONVERSATIONS, _MAX_TOTAL_BYTES),
            )


def _digest(key: str) -> bytes:
    """Return what a key is known by: keys have up to 3 KB."""
    return hashlib.sha256(key.encode()).digest()[:16]


def _reason_of(error: Exception) -> str:
    """Return why a store failed. Of a file only the reason: its path is not for an asker."""
    if isinstance(error, RoomException) and "reason" in error.details:
        return str(error.details["reason"])
    return "the store of the agent failed"


def _unavailable(
    conversation: Conversation, reason: str, *, retryable: bool, can: str = "be read"
) -> ConversationUnavailable:
    name = conversation.name
    what = f"the conversation {name!r}" if name else "the conversation"
    return ConversationUnavailable(
        f"{what} cannot {can}: {reason}",
        executed="no",
        retryable=retryable,
        details={"conversation": name, "reason": reason},
    )
