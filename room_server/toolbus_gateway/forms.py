"""What a call waits for, as a form that a client of MCP shows to its user.

A form has one level of plain fields. What cannot be asked by one is answered elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from toolbus.cli.approvals.questions import answer_question_of, question_of
from toolbus.errors import InvalidArguments
from toolbus.room.holds import HoldInfo
from toolbus.room.room_client import RoomClient
from toolbus.untrusted_text import json_text, printable

__all__ = ["Form"]

_APPROVE, _ANSWER = "approve", "answer"
_is_key = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII).fullmatch
_WORDS = frozenset({"type", "title", "description", "default"})
_FIELD_KEYS: Mapping[str, frozenset[str]] = {
    "string": _WORDS | {"minLength", "maxLength", "format", "enum", "oneOf"},
    "number": _WORDS | {"minimum", "maximum"},
    "integer": _WORDS | {"minimum", "maximum"},
    "boolean": _WORDS,
    "array": _WORDS | {"items", "minItems", "maxItems"},
}
"""What a form may say of a field; what else its schema asks for, the answer is checked for."""
_FORMATS = ("email", "uri", "date", "date-time")  # a schema may have anything there, also a list
_APPROVAL: Mapping[str, Any] = {
    "type": "boolean",
    "title": "Approve",
    "description": "Whether the call may run exactly as shown",
}


@dataclass(frozen=True, slots=True)
class Form:
    """A question to the user of a client."""

    key: str
    """What names it among what a client is asked: the title of its schema, if it has one."""
    message: str
    schema: dict[str, Any]
    """The fields, as MCP has them."""
    is_approval: bool
    is_wrapped: bool
    """Whether the answer is the value of the one field `answer`."""

    @property
    def is_named(self) -> bool:
        """Whether its tool has named it, so that it can be answered before it is asked."""
        return self.key not in (_APPROVE, _ANSWER)

    @classmethod
    def of(cls, hold: HoldInfo, wrong: str = "") -> Form | None:
        """Make the form of an open hold, read with its body; None if none can ask for it.

        Args:
            hold: What waits.
            wrong: What was wrong with the answer before; empty the first time.
        """
        body = hold.body
        if body is None:
            return None
        schema: Mapping[str, Any] | None
        if hold.kind == _APPROVE:
            key, is_wrapped, field = _APPROVE, True, dict(_APPROVAL)
        else:
            schema = body.schema or {"type": "string"}
            title = schema.get("title")
            key = title if isinstance(title, str) and _is_key(title) else _ANSWER
            if schema.get("type") == "object":
                fields = _fields(schema)
                if fields is None:
                    return None
                return cls(key, _message(hold, wrong), fields, False, False)
            asked = {"type": "string", "enum": [*body.options]} if body.options else schema
            is_wrapped, found = True, _field(asked)
            if found is None:
                return None
            field = found
        name = _APPROVE if hold.kind == _APPROVE else _ANSWER
        form = {"type": "object", "properties": {name: field}, "required": [name]}
        return cls(key, _message(hold, wrong), form, hold.kind == _APPROVE, is_wrapped)

    async def settle(self, room: RoomClient, hold: HoldInfo, content: Mapping[str, Any]) -> None:
        """Settle a hold as its user has filled in the form.

        Raises as `RoomClient.approve` and `answer`; `InvalidArguments` for what is no answer.
        """
        if self.is_wrapped and not self.schema["properties"].keys() <= content.keys():
            raise InvalidArguments("the form was not filled in", executed="no")
        if not self.is_approval:
            await room.answer(hold, content[_ANSWER] if self.is_wrapped else dict(content))
        elif content[_APPROVE] is True:
            await room.approve(hold)
        else:
            await room.deny(hold)


def _fields(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the form of an object with plain fields."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return None
    fields = {name: _field(part) for name, part in properties.items()}
    if None in fields.values():
        return None
    required = schema.get("required", [])
    return {"type": "object", "properties": fields, "required": required}


def _field(schema: Any) -> dict[str, Any] | None:
    if not isinstance(schema, dict) or not isinstance(schema.get("type"), str):
        return None
    keys = _FIELD_KEYS.get(schema["type"])
    if keys is None:
        return None
    field = {key: value for key, value in schema.items() if key in keys}
    if field.get("format", "email") not in _FORMATS:
        del field["format"]
    if schema["type"] == "array":
        items = schema.get("items")
        is_choice = isinstance(items, dict) and items.get("type") == "string" and "enum" in items
        return field if is_choice else None
    return field


def _message(hold: HoldInfo, wrong: str) -> str:
    """Return all that the user has to know: what is not shown is not approved."""
    hold = replace(hold, left_s=None)  # the call may be made again for the answer
    if hold.kind == _APPROVE:
        question = question_of(hold)
        first, arguments = "Approve this call?", question.arguments
        about, reasons = question.about, question.reasons
    else:
        asked = answer_question_of(hold)
        first, arguments = printable(asked.text), asked.arguments or {}
        about, reasons = asked.about, asked.reasons
        if asked.arguments is not None:
            first = "Answer this call: your answer is its result."
    parts = [*about]
    if arguments:
        parts.append(("arguments", json_text(dict(arguments), indent=2)))
    if wrong:
        parts.append(("the answer before did not fit", printable(wrong)))
    lines = [f"{label}:{_joint(text)}{text}" for label, text in [*parts, *reasons]]
    return "\n".join([first, "", *lines])


def _joint(text: str) -> str:
    return "\n" if "\n" in text else " "
