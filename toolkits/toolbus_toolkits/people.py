"""A toolkit that asks people: its one tool returns what somebody in the room answers.

What nobody could answer is refused before anybody is asked: a person who meets it can only deny.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, Field, field_validator

from toolbus import (
    FunctionTool,
    InvalidArguments,
    RoomException,
    ToolContext,
    ToolFailed,
    Toolkit,
    tool,
)
from toolbus.schemas.foreign import usable_schema
from toolbus.schemas.validation import JsonCheck
from toolbus.tools.approvers import checked_approvers
from toolbus.untrusted_text import json_text
from toolbus.wire import pack_body

__all__ = ["PeopleConfig", "people"]

# A person reads all of it before the answer, and all of it together fits into one hold.
_MAX_QUESTION_CHARS = 4_000
_MAX_OPTIONS = 50
_MAX_OPTION_CHARS = 200
_MAX_SCHEMA_BYTES = 64 * 1024
_BOUNDS = {
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
"""The keywords of each type of which the first may not be greater than the second."""

_Option: TypeAlias = Annotated[str, Field(min_length=1, max_length=_MAX_OPTION_CHARS)]
# The server takes 256 entries of 8,192 characters together.
_Approvers: TypeAlias = Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=64)]


class PeopleConfig(BaseModel, frozen=True, extra="forbid"):
    """Whom the toolkit `people` asks; `ValidationError` for what names nobody."""

    to: _Approvers = Field(
        default_factory=list,
        description="Who may answer where a call names nobody: role:x or name:x. By default whom "
        "the call is made for.",
    )

    @field_validator("to")
    @classmethod
    def _must_name_somebody(cls, to: list[str]) -> list[str]:
        checked_approvers(to, "to")
        return to


@tool(read_only=True)
async def ask(
    context: ToolContext,
    question: Annotated[str, Field(min_length=1, max_length=_MAX_QUESTION_CHARS)],
    options: Annotated[list[_Option], Field(max_length=_MAX_OPTIONS)] | None = None,
    schema: dict[str, Any] | None = None,
    to: _Approvers | None = None,
) -> Any:
    """Ask a person, wait for the answer, and return it.

    Args:
        context: The call; its time stands still while the person is asked.
        question: What is asked, so that it can be understood without this conversation.
        options: The answers to choose from, as texts. Any answer is accepted without them.
        schema: A JSON Schema of the answer, where a text is not enough.
        to: Who may answer: "role:x" for all with a role, "name:x" for one person. By default
            whom this call is made for.
    """
    try:
        checked_approvers(to or (), "to")
        usable = None if schema is None else _checked(schema, options or ())
    except ValueError as error:
        raise context.refuse(InvalidArguments(str(error))) from None
    context.enter()
    try:
        # Who calls says how long it waits.
        return await context.ask(
            question, schema=usable, options=options or (), timeout_s=None, to=to or ()
        )
    except RoomException as error:  # else a host need not send its text, with the person's words
        raise ToolFailed(error.message, details={"code": error.code}) from None


_NO_CONFIG = PeopleConfig()


def people(config: PeopleConfig = _NO_CONFIG) -> Toolkit:
    """Make the toolkit `people`, which asks people in the room: `ask`."""
    asking = FunctionTool(ask)
    asking.marks_entry = True  # by `enter`: before, nobody was asked
    return Toolkit(
        name="people",
        title="People",
        description="Asks a person, and returns the answer.",
        rules=[
            "Ask only what you cannot find out yourself, and what changes what you do.",
            "Give `options` where there are few answers.",
            "A person who does not answer may be away: go on without, or say what you wait for.",
        ],
        tools=[asking],
        approvers=config.to,
    )


def _checked(schema: dict[str, Any], options: Sequence[str]) -> dict[str, Any]:
    """Return the schema as it is checked. Raises `ValueError` if no answer could match it."""
    if len(pack_body(schema)) > _MAX_SCHEMA_BYTES:
        raise ValueError(f"schema: it has more than {_MAX_SCHEMA_BYTES:,} bytes")
    usable = usable_schema(schema)
    if usable.dropped:
        raise ValueError(f"schema: at {usable.dropped[0]}")
    if _is_impossible(usable.schema):
        raise ValueError("schema: no answer can match it")
    check = JsonCheck(usable.schema)
    for option in options:
        if (violation := check.violation(option)) is not None:
            raise ValueError(f"options: {json_text(option)} breaks schema: {violation.message}")
    return usable.schema


def _is_impossible(schema: Any) -> bool:
    """Whether a schema plainly refuses every value: not all that do are found, and no others."""
    if not isinstance(schema, dict):
        return schema is False
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return not any(map(JsonCheck(schema, deferred=True).fits, values))
    if schema.get("not") in (True, {}) or any(map(_is_impossible, schema.get("allOf", ()))):
        return True
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword) and all(map(_is_impossible, schema[keyword])):
            return True
    kind = schema.get("type")
    least, most = _BOUNDS.get(kind if isinstance(kind, str) else "", ("", ""))
    if schema.get(least, 0) > schema.get(most, inf):
        return True
    properties = schema.get("properties", {})
    required = schema.get("required", ()) if kind == "object" else ()
    return any(_is_impossible(properties.get(name)) for name in required)
