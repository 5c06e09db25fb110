"""The definition of a tool: its name, schemas and options, and their checks.

Independent of how a tool runs. A definition is checked and its schemas are compiled when its
manifest is first read; later changes have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from toolbus.chunks.json_values import cut, shown
from toolbus.diagnostics.user_code_errors import error_text
from toolbus.schemas.validation import JsonCheck
from toolbus.tools.approvers import DEFAULT_APPROVAL_S, approval_seconds, checked_approvers
from toolbus.tools.error_text import SentErrors, checked_errors
from toolbus.wire.manifest import ToolManifest

if TYPE_CHECKING:
    from toolbus.tools.middleware import Middleware

__all__ = ["CompiledDefinition", "ToolDefinition", "rules_of"]

_Schema = TypeVar("_Schema", dict[str, Any], dict[str, Any] | None)


@dataclass(frozen=True, slots=True)
class CompiledDefinition:
    """The manifest and the compiled schemas of a definition, made once."""

    manifest: ToolManifest
    arguments: JsonCheck
    result: JsonCheck | None


class ToolDefinition:
    """The published part of a tool; `Tool` documents the fields."""

    name: str = ""
    input_schema: dict[str, Any]
    title: str = ""
    description: str = ""
    rules: Sequence[str] = ()
    thumbnail_url: str = ""
    defs: Mapping[str, Any] | None = None
    supports_context: bool = False
    output_schema: dict[str, Any] | None = None
    read_only: bool = False
    idempotent: bool = False
    streaming: bool = False
    timeout_s: float | None = None
    max_concurrency: int | None = None
    affinity: str = "none"
    concurrency_safe: bool | None = None
    destructive: bool = False
    open_world: bool = False
    external: bool = False
    approval: bool = False
    approvers: Sequence[str] = ()
    approval_timeout_s: float | None = DEFAULT_APPROVAL_S
    cache_ttl_s: float | None = None
    annotations: Mapping[str, Any] | None = None
    errors: SentErrors | None = None

    schemas_are_checked: bool = False
    """Whether its author has checked that the schemas compile, and changes them no more.

    They are then shared with the manifest instead of copied, and compiled at the first call. A
    toolkit of many tools that share large definitions is made faster, and is smaller.
    """

    _compiled: CompiledDefinition | None = None

    def __init__(  # noqa: PLR0913 - the promised signature
        self,
        name: str | None = None,
        input_schema: dict[str, Any] | None = None,
        *,
        title: str | None = None,
        description: str | None = None,
        rules: Sequence[str] | None = None,
        thumbnail_url: str | None = None,
        defs: Mapping[str, Any] | None = None,
        supports_context: bool | None = None,
        output_schema: dict[str, Any] | None = None,
        read_only: bool | None = None,
        idempotent: bool | None = None,
        streaming: bool | None = None,
        timeout_s: float | None = None,
        max_concurrency: int | None = None,
        affinity: str | None = None,
        concurrency_safe: bool | None = None,
        destructive: bool | None = None,
        open_world: bool | None = None,
        external: bool | None = None,
        approval: bool | None = None,
        approvers: Sequence[str] | None = None,
        approval_timeout_s: float | None = DEFAULT_APPROVAL_S,
        cache_ttl_s: float | None = None,
        annotations: Mapping[str, Any] | None = None,
        errors: SentErrors | None = None,
        middlewares: Sequence[Middleware] | None = None,
    ) -> None:
        given = {key: value for key, value in locals().items() if value is not None}
        del given["self"]
        given.pop("approval_timeout_s", None)
        if approval_timeout_s != DEFAULT_APPROVAL_S:  # None is a value too
            self.approval_timeout_s = approval_timeout_s
        for option, value in given.items():  # not through `vars`: that slows later attribute reads
            setattr(self, option, value)
        if input_schema is not None:
            _require_schema(input_schema, f"{self._label}: input_schema")
        self._check_cache()

    @property
    def _label(self) -> str:
        """The name of this tool in error messages."""
        return f"tool {shown(self.name)}" if self.name else type(self).__name__

    def manifest(self) -> ToolManifest:
        """Return the published manifest of this tool.

        A toolkit reads it when it is made; from then on the definition is fixed. Raises `TypeError`
        or `ValueError` that names the tool.
        """
        return (self._compiled or self._compile()).manifest

    def _compile(self) -> CompiledDefinition:
        """Check the definition and compile its schemas."""
        if not isinstance(self.name, str):
            raise TypeError(f"{self._label}: name must be text, not {type(self.name).__name__}")
        self._check_cache()
        checked_errors(self.errors, self._label)
        self.approvers = checked_approvers(self.approvers, self._label)
        self.approval_timeout_s = approval_seconds(self.approval_timeout_s, self._label)
        schema = self._merged_schema()
        _check_affinity(self.affinity, schema, self._label)
        if self.output_schema is not None:
            _require_schema(self.output_schema, f"{self._label}: output_schema")
        try:
            manifest = _manifest(self, schema)
            result = manifest.output_schema
            deferred = self.schemas_are_checked
            self._compiled = CompiledDefinition(
                manifest,
                JsonCheck(manifest.input_schema, deferred=deferred),
                None if result is None else JsonCheck(result, deferred=deferred),
            )
        except ValidationError as error:
            raise ValueError(f"{self._label}: {error_text(error)}") from None
        except ValueError as error:
            raise ValueError(f"{self._label}: {error}") from error
        if not isinstance(getattr(type(self), "input_schema", None), property):
            self.input_schema = schema  # as the manifest has it: with its type and `defs`
        return self._compiled

    def _check_cache(self) -> None:
        """Raise `ValueError` for a cache over a tool that may change something."""
        if self.cache_ttl_s is not None and not self.read_only:
            text = "cache_ttl_s needs read_only=True: a cached call does not run"
            raise ValueError(f"{self._label}: {text}")

    def _merged_schema(self) -> dict[str, Any]:
        """Return the input schema with `defs` merged into the `$defs` it has."""
        schema = _require_schema(
            getattr(self, "input_schema", None), f"{self._label}: input_schema"
        )
        if schema.get("type", "object") != "object":
            raise ValueError(f"{self._label}: the type of input_schema must be 'object'")
        schema = {"type": "object", **schema}
        if not self.defs:
            return schema
        if not isinstance(self.defs, Mapping):
            raise TypeError(f"{self._label}: defs must be a dict, not {type(self.defs).__name__}")
        merged = dict(schema.get("$defs", {}))
        for name, definition in self.defs.items():
            if merged.setdefault(name, definition) != definition:
                raise ValueError(f"{self._label}: $defs has another definition of {name!r}")
        schema["$defs"] = merged
        return schema


def rules_of(rules: Sequence[str], label: str) -> tuple[str, ...]:
    """Copy rules; a single string, which would become a rule per letter, is a `TypeError`."""
    if isinstance(rules, str) or not isinstance(rules, Iterable):
        kind = "one string" if isinstance(rules, str) else type(rules).__name__
        raise TypeError(f"{label}: rules must be a list of strings, not {kind}")
    return tuple(rules)


def _require_schema(schema: object, what: str) -> dict[str, Any]:
    if isinstance(schema, dict):
        return schema
    if isinstance(schema, type):
        text = f"must be a dict, not the class {cut(schema.__name__)}"
        raise TypeError(f"{what} {text}: a pydantic model has model_json_schema()")
    raise TypeError(f"{what} must be a dict, not {type(schema).__name__}")


def _check_affinity(affinity: object, schema: dict[str, Any], label: str) -> None:
    """Raise `ValueError` for an affinity to an argument that no call can have."""
    if affinity in ("none", "caller") or schema.get("additionalProperties") is not False:
        return
    named = schema.get("properties", {})
    if affinity not in named and not schema.get("patternProperties"):
        there = cut(", ".join(named)) or "there are none"
        text = "affinity must be 'none', 'caller' or the name of an argument"
        raise ValueError(f"{label}: {text} ({there}), not {shown(affinity)}")


def _fixed_schema(tool: ToolDefinition, schema: _Schema) -> _Schema:
    return schema if tool.schemas_are_checked else deepcopy(schema)


def _manifest(tool: ToolDefinition, schema: dict[str, Any]) -> ToolManifest:
    made: dict[str, Any] = {
        "title": tool.title or tool.name,
        "input_schema": _fixed_schema(tool, schema),
        "output_schema": _fixed_schema(tool, tool.output_schema),
        "rules": rules_of(tool.rules, tool._label),
        "annotations": deepcopy(dict(tool.annotations or {})),
    }
    # All others have the names of the definition; what a call may send is added by `Tool`.
    others = ToolManifest.model_fields.keys() - made.keys() - {"takes", "takes_required"}
    return ToolManifest(**made, **{name: getattr(tool, name) for name in others})
