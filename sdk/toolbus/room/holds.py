"""Calls that wait for a person, as those see them who may approve them. Values only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from toolbus.auth.participant_names import full_name
from toolbus.chunks.chunk_types import Chunk, FileChunk, as_chunk, one_chunk
from toolbus.client.input_sender import invalid_option
from toolbus.errors import InvalidArguments, InvalidResult, TooLarge
from toolbus.permissions.granted_rules import GrantedRule, granted_rule
from toolbus.permissions.plain import rule_from_plain, rule_to_plain
from toolbus.permissions.rule import Rule
from toolbus.tools.approvals import bound_digest
from toolbus.tools.questions import misfit, misfit_error, question_digest
from toolbus.tools.tool_run import Participant
from toolbus.wire import MAX_HOLD_BYTES, BadBody, pack_body, unpack_body

__all__ = ["GrantedHold", "HoldBody", "HoldInfo", "answer_chunk", "packed_answer", "packed_rules"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HoldBody:
    """What is asked about a call: in the words of its host, except for `arguments`."""

    arguments: Mapping[str, Any]
    """The values by parameter with which the function would be entered; of the kind "answer" those
    of the call that waits for its result, and none with a question."""
    reason: str
    """Why a person is asked; of the kind "answer" why once more."""
    message: str = ""
    """What the tool says about this input."""
    preview: str = ""
    """What the call would change, such as a diff."""
    reaches: str = ""
    """The tool that the call would reach, `toolkit.tool`, if the called one only forwards."""
    suggestions: tuple[Rule, ...] = ()
    """Rules that would have allowed it, or parts of it."""
    has_input: bool = False
    """Whether the call sends an attachment or values too: these are not shown, nor approved."""
    has_patterns: bool = True
    """Whether a rule with `match` may cover calls of the tool, as far as its host says."""
    approvers: tuple[str, ...] = ()
    """Who may settle it, as the host chose; empty for all with the grant."""
    question: str = ""
    """What is asked, of the kind "answer"."""
    schema: Mapping[str, Any] | None = None
    """A JSON Schema that an answer has to match."""
    options: tuple[str, ...] = ()
    """The answers to choose from; empty for any."""
    is_result: bool = False
    """Whether the answer is the result of the call: its tool has no code."""

    def check(self, answer: Chunk) -> None:
        """Raise `InvalidArguments` for an answer that is not what is asked for."""
        from toolbus.schemas.foreign import usable_schema  # few programs answer
        from toolbus.schemas.validation import JsonCheck

        check = None if self.schema is None else JsonCheck(usable_schema(self.schema).schema)
        wrong = misfit(answer, check, self.options, is_result=self.is_result)
        if wrong:
            raise misfit_error(wrong)


@dataclass(frozen=True, slots=True)
class HoldInfo:
    """A call that waits for a person, or did. All of this but `body` the server itself knows."""

    id: str
    toolkit: str
    tool: str
    """The tool, written `toolkit.tool`."""
    owner: str
    """The identity that hosts the toolkit; `alias/name` beside other issuers."""
    asked_for: str
    """For whom the call is made: its principal, else its caller; `alias/name` beside others."""
    definition: str
    """The digest of the definition of the toolkit."""
    digest: bytes
    """SHA-256 of `definition` and the packed arguments, or question: what a decision is about."""
    kind: str = "approve"
    """"approve", "answer" for a question or a call without code, or "granted" for a rule that a
    person has granted, which may be taken back."""
    caller: Participant | None = None
    """Who makes the call; None for a granted rule."""
    call_id: str = ""
    """The id of the call, the same for every attempt."""
    is_own: bool = False
    """Whether its caller asks itself, before it makes the call; else the host asks that runs it."""
    on_behalf_of: Participant | None = None
    """For whom the call is made, if that is not its caller."""
    forwarded_for: tuple[Participant, ...] = ()
    """Those that the caller forwards it for, the nearest first."""
    purpose: str = ""
    """What the call is for, in the words of its caller."""
    age_s: float = 0.0
    """Seconds since it began to wait."""
    left_s: float | None = None
    """Seconds until it expires; None if it does not, or is settled."""
    outcome: str = "open"
    """"open"; then "approved", "answered", "denied", "expired", "cancelled", or "lost" as its host
    leaves."""
    by: Participant | None = None
    """Who settled it."""
    reason: str = ""
    """Why it was denied, in that participant's words."""
    replaces: str = ""
    """The id of the hold of an earlier attempt of this call, whose host or caller was lost."""
    is_away: bool = False
    """Whether its caller has lost its connection, or had when somebody decided. The call has ended;
    a decision waits for 10 minutes, and is used if the caller makes the call again."""
    body: HoldBody | None = None
    """What is asked; only from `RoomClient.hold`, while it is open."""

    @property
    def is_open(self) -> bool:
        """Whether it waits."""
        return self.outcome == "open"

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> HoldInfo:
        """Read a hold as the server sends it.

        Raises `InvalidResult` if what its host asks cannot be read, or is not what would run.
        """
        with _reading():
            left_ms = data.get("left_ms")
            return cls(
                **_facts(data),
                kind=_checked(data["kind"], str),
                caller=_participant(data.get("caller")),
                call_id=_text(data, "call_id"),
                is_own=data.get("own") is True,
                on_behalf_of=_participant(data.get("on_behalf_of")),
                forwarded_for=tuple(filter(None, map(_participant, data.get("forwarded_for", ())))),
                purpose=_text(data, "purpose"),
                left_s=None if left_ms is None else left_ms / 1000,
                outcome=_checked(data["outcome"], str),
                by=_participant(data.get("by")),
                reason=_text(data, "reason"),
                replaces=_text(data, "replaces"),
                is_away=data.get("away") is True,
                body=_body(data) if "body" in data else None,
            )


@dataclass(frozen=True, slots=True)
class GrantedHold:
    """A rule that a person has granted at a host, until it is taken back or the host ends."""

    id: str
    toolkit: str
    tool: str
    """The tool that it is about, written `toolkit.tool`."""
    owner: str
    """The identity whose host it is; `alias/name` beside other issuers."""
    asked_for: str
    """For whose calls it holds; `alias/name` beside others."""
    definition: str
    """The digest of the definition of the toolkit: with another one persons are asked again."""
    digest: bytes
    """Identifies the rule."""
    age_s: float
    """Seconds since it was granted, or listed again on a new connection."""
    rule: GrantedRule | None
    """What it covers, in the words of its host; None if these cannot be read."""

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> GrantedHold:
        """Read one as the server lists it. Raises `InvalidResult` if it cannot be read."""
        with _reading():
            packed, rule = _checked(data["body"], bytes), None
            with suppress(BadBody, ValueError):
                rule = granted_rule(unpack_body(packed))
            return cls(**_facts(data), rule=rule)


@contextmanager
def _reading() -> Iterator[None]:
    """Raise `InvalidResult` for what a server should not have sent."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        text = f"what the server says of an approval cannot be read: {error}"
        raise InvalidResult(text, executed="no") from error


def _facts(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a call that waits and a granted rule have in common."""
    texts = {n: _checked(data[n], str) for n in ("id", "toolkit", "tool", "definition")}
    return texts | {
        "tool": f"{texts['toolkit']}.{texts['tool']}",
        "owner": _name(data["owner"]),
        "asked_for": _name(data["asked_for"]),
        "digest": _checked(data["digest"], bytes),
        "age_s": data["age_ms"] / 1000,
    }


def _name(identity: Mapping[str, Any]) -> str:
    return full_name(_checked(identity["name"], str), _text(identity, "alias"))


def _participant(facts: Mapping[str, Any] | None) -> Participant | None:
    if facts is None:
        return None
    texts = {name: _checked(facts[name], str) for name in ("id", "name", "role", "issuer")}
    return Participant(**texts, alias=_text(facts, "alias"))


def _body(data: Mapping[str, Any]) -> HoldBody | None:
    try:
        body = unpack_body(data["body"], binary=True)
        if data["kind"] == "answer":
            return _question(data, body)
        if data["kind"] != "approve":
            return None
        packed = body["arguments"]
        if bound_digest(data["definition"], packed) != data["digest"]:
            raise ValueError("its digest is that of something else")
        return HoldBody(
            arguments=_arguments(packed),
            reason=_text(body, "reason"),
            message=_text(body, "message"),
            preview=_text(body, "preview"),
            reaches=_text(body, "reaches"),
            suggestions=tuple(map(rule_from_plain, body.get("suggestions", ()))),
            has_input=body.get("input") is True,
            has_patterns=body.get("patterns") is not False,
            approvers=_texts(data, "approvers"),
        )
    except (BadBody, LookupError, TypeError, ValueError) as error:
        text = f"what the host of {data['toolkit']} asks cannot be read: {error}"
        raise InvalidResult(text, executed="no") from error


def _question(data: Mapping[str, Any], body: Mapping[str, Any]) -> HoldBody:
    if question_digest(data["definition"], data["body"]) != data["digest"]:
        raise ValueError("its digest is that of something else")
    packed, schema = body.get("arguments"), body.get("schema")
    return HoldBody(
        arguments={} if packed is None else _arguments(packed),
        reason=_text(body, "reason"),
        approvers=_texts(data, "approvers"),
        question=_text(body, "question"),
        schema=None if schema is None else _checked(schema, dict),
        options=_texts(body, "options"),
        is_result=packed is not None,
    )


def _arguments(packed: bytes) -> dict[str, Any]:
    arguments = unpack_body(packed)
    if not isinstance(arguments, dict):
        raise ValueError("its arguments are not one object")
    return arguments


def _text(facts: Mapping[str, Any], name: str) -> str:
    return _checked(facts.get(name, ""), str)


def _texts(facts: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(_checked(entry, str) for entry in _checked(facts.get(name, []), list))


def _checked(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} in place of {kind.__name__}")
    return value


def packed_rules(rule: Rule | Sequence[Rule] | bool) -> bytes:
    """Pack the rules that an approval grants; none of them stands for exactly this call.

    Raises `InvalidArguments` for anything else.
    """
    rules = () if rule is True else (rule,) if isinstance(rule, Rule) else rule
    if isinstance(rules, bool) or not all(isinstance(granted, Rule) for granted in rules):
        text = "rule must be a Rule, a list of them, or True for exactly these arguments"
        raise invalid_option("rule", text)
    return pack_body([rule_to_plain(granted) for granted in rules])


async def answer_chunk(values: Sequence[Any]) -> Chunk:
    """Return the values of an answer as one chunk, in memory.

    Raises `InvalidArguments` for what cannot be sent, `TooLarge`, and `OSError`.
    """
    chunks: list[Chunk] = []
    for value in values:
        try:
            chunk = as_chunk(value)
        except InvalidResult as error:
            raise InvalidArguments(error.message, executed="no", details=error.details) from error
        if isinstance(chunk, FileChunk) and not chunk.is_whole:
            data = b""
            async for piece in chunk.pieces():
                data += piece
                if len(data) > MAX_HOLD_BYTES:
                    raise _too_large()
            chunk = FileChunk(data, chunk.name, chunk.mime_type)
        chunks.append(chunk)
    return one_chunk(chunks)


def packed_answer(chunk: Chunk) -> bytes:
    """Pack an answer. Raises `TooLarge`, and `InvalidArguments` for what cannot be sent."""
    try:
        packed = pack_body(chunk.to_wire())
    except BadBody as error:
        raise InvalidArguments(error.reason, executed="no") from error
    if len(packed) > MAX_HOLD_BYTES:
        raise _too_large()
    return packed


def _too_large() -> TooLarge:
    text = f"an answer has at most {MAX_HOLD_BYTES} bytes: send a larger file as a link"
    return TooLarge(text, executed="no")
