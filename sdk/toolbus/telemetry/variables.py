"""Checks the `OTEL_*` variables, so that a wrong one costs a warning and not the program.

The OpenTelemetry SDK raises for some wrong values, also while it is imported, logs a traceback for
others, and uses some as they are until a request fails. Here each wrong value is replaced by the
default before the SDK reads it, and named in one warning. No value is shown: a header or an address
may contain a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

from opentelemetry import trace

from toolbus.bounded_logging import bounded_logger, silence
from toolbus.telemetry.installed_parts import drop_unknown_parts

__all__ = ["asks_for_spans", "corrected_variables", "process_provider"]

_logger = bounded_logger("toolbus.telemetry.tracing")
_MAX_NUMBER = 2**31 - 1
"""Above it a queue cannot be made, and a thread cannot wait that long."""
_EXPORTER = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$&'*+.^_`|~-]+")
_PROVIDER = "OTEL_PYTHON_TRACER_PROVIDER"
_QUEUE = "OTEL_BSP_MAX_QUEUE_SIZE"
_QUEUE_SIZE = 2_048
_BATCH = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
_BATCH_SIZE = 512

_Correct: TypeAlias = Callable[[str], str | None]
"""Returns what is right of a value, or None for the default."""


class _Rule(NamedTuple):
    """What a variable must be, and what is used in place of a wrong value."""

    form: str
    default: str
    correct: _Correct


def _number(read: type[int | float], lowest: float, highest: float, value: str) -> str | None:
    try:
        return value if lowest <= read(value) <= highest else None
    except ValueError:  # also for more digits than Python reads
        return None


def _one_of(names: tuple[str, ...], value: str) -> str | None:
    name = value.strip().lower()
    return name if name in names else None


def _address(value: str) -> str | None:
    value = value.strip()
    try:
        parts = urlsplit(value)
        _ = parts.port  # raises ValueError for a port that is none
    except ValueError:
        return None
    is_plain = value.isprintable() and " " not in value
    return value if is_plain and parts.scheme in {"http", "https"} and parts.hostname else None


def _file(value: str) -> str | None:
    try:
        return value if Path(value).exists() else None
    except (OSError, ValueError):
        return None


def _entries(value: str) -> list[str]:
    return [entry.strip() for entry in value.split(",") if entry.strip()]


def _pairs(is_right: Callable[[str, str], object], value: str) -> str:
    found = [(entry, *entry.partition("=")) for entry in _entries(value)]
    return ",".join(
        entry for entry, name, equals, text in found if equals and is_right(name.strip(), text)
    )


def _is_header(name: str, value: str) -> bool:
    # A value that requests would not send fails each export, without a word about the variable.
    text = unquote(value)
    is_sendable = text.isascii() and text.isprintable() and not set(value) & set('";\\')
    return is_sendable and _HEADER_NAME.fullmatch(name) is not None


def _text(value: str) -> str | None:
    # Bytes that are not UTF-8 are surrogates here, and no span can be encoded with them.
    return None if any("\ud800" <= character <= "\udfff" for character in value) else value


def _installed(group: str, value: str) -> str | None:
    return value if list(entry_points(group=group, name=value)) else None


def _installed_list(group: str, value: str) -> str:
    return ",".join(name for name in _entries(value) if name == "*" or _installed(group, name))


def _count(lowest: int, default: object) -> _Rule:
    form = f"a whole number from {lowest} to {_MAX_NUMBER}"
    return _Rule(form, f"{default} is", partial(_number, int, lowest, _MAX_NUMBER))


def _choice(default: str, *names: str) -> _Rule:
    return _Rule(f"one of {', '.join(names)}", f"{default} is", partial(_one_of, names))


_SWITCH = _choice("false", "true", "false")
_NO_FILE = _Rule("a file that exists", "none is", _file)
_HEADER_PAIRS = _Rule("name=value pairs of headers", "the others are", partial(_pairs, _is_header))
_CREDENTIALS = _Rule(
    "the name of an installed credential provider",
    "none is",
    partial(_installed, "opentelemetry_otlp_credential_provider"),
)
_OTLP: Mapping[str, _Rule] = {
    "ENDPOINT": _Rule("an http:// or https:// address", "http://localhost:4318 is", _address),
    "PROTOCOL": _Rule("http/protobuf", "http/protobuf is", partial(_one_of, ("http/protobuf",))),
    "HEADERS": _HEADER_PAIRS,
    "TIMEOUT": _Rule("a number above 0", "5 is", partial(_number, float, 0.001, _MAX_NUMBER)),
    "COMPRESSION": _choice("none", "gzip", "deflate", "none"),
    "CERTIFICATE": _Rule("a file that exists", "the usual authorities are", _file),
    "CLIENT_CERTIFICATE": _NO_FILE,
    "CLIENT_KEY": _NO_FILE,
}
_RULES: Mapping[str, _Rule] = {
    "OTEL_SDK_DISABLED": _SWITCH,
    "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": _SWITCH,
    "OTEL_SERVICE_NAME": _Rule("text in UTF-8", "the name of the program is", _text),
    "OTEL_RESOURCE_ATTRIBUTES": _Rule(
        "name=value pairs in UTF-8",
        "the others are",
        partial(_pairs, lambda name, text: name and _text(text) is not None),
    ),
    "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": _Rule(
        "names of installed detectors",
        "the others are",
        partial(_installed_list, "opentelemetry_resource_detector"),
    ),
    "OTEL_TRACES_SAMPLER": _choice(
        "parentbased_always_on",
        "always_on",
        "always_off",
        "parentbased_always_on",
        "parentbased_always_off",
        "traceidratio",
        "parentbased_traceidratio",
    ),
    _QUEUE: _count(1, _QUEUE_SIZE),
    _BATCH: _count(1, _BATCH_SIZE),
    "OTEL_BSP_SCHEDULE_DELAY": _count(1, 500),
    "OTEL_BSP_EXPORT_TIMEOUT": _count(1, 30_000),
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": _count(0, 4_096),
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": _count(0, 4_096),
    **{
        f"OTEL_{counted}_COUNT_LIMIT": _count(0, 128)
        for counted in (
            "ATTRIBUTE",
            "SPAN_ATTRIBUTE",
            "EVENT_ATTRIBUTE",
            "LINK_ATTRIBUTE",
            "SPAN_EVENT",
            "SPAN_LINK",
        )
    },
    **{
        f"OTEL_EXPORTER_OTLP_TRACES_{name}": rule
        if name == "HEADERS"
        else rule._replace(default=f"OTEL_EXPORTER_OTLP_{name}, or else its default, is")
        for name, rule in _OTLP.items()
    },
    **{f"OTEL_EXPORTER_OTLP_{name}": rule for name, rule in _OTLP.items()},
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER": _CREDENTIALS,
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER": _CREDENTIALS,
}
_RATIO = _Rule("a number from 0 to 1", "1 is", partial(_number, float, 0, 1))


def asks_for_spans(environ: Mapping[str, str]) -> bool:
    """Whether the variables ask for spans; an unknown exporter is a warning, and counts as none."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    named = {name.strip() for name in environ.get(_EXPORTER, "").lower().split(",")} - {""}
    if named - {"otlp", "none"}:
        _warn(_EXPORTER, _Rule("otlp or none", "an endpoint decides, and otlp is", _text))
    if "otlp" in named or "none" in named:
        return "otlp" in named
    return any(environ.get(name) for name in _ENDPOINTS)


@contextmanager
def corrected_variables() -> Iterator[None]:
    """Replace wrong variables of this process for the block, in which the SDK reads them.

    A child process that starts later gets them as they were, and warns itself.
    """
    drop_unknown_parts()
    given = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
    right = _corrected(given)
    _apply(right, given)
    try:
        yield
    finally:
        _apply(given, right)


def _apply(wanted: Mapping[str, str], present: Mapping[str, str]) -> None:
    for name in present.keys() - wanted.keys():
        os.environ.pop(name, None)
    os.environ.update(wanted)


def _corrected(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to use, with a warning for each that is wrong."""
    right = dict(given)
    rules = dict(_RULES)
    if "ratio" in given.get("OTEL_TRACES_SAMPLER", "").lower():
        rules["OTEL_TRACES_SAMPLER_ARG"] = _RATIO
    for name, rule in rules.items():
        value = given.get(name)
        if value is None:
            continue
        corrected = rule.correct(value) if value.strip() else None
        is_list = rule.default.startswith("the others")
        is_right = corrected is not None
        if is_list and corrected is not None:
            is_right = _entries(corrected) == _entries(value)
        if value.strip() and not is_right:
            _warn(name, rule)
        if corrected:
            right[name] = corrected
        elif value.strip() or not name.endswith("_LIMIT"):  # an empty limit means none to the SDK
            del right[name]
    if "OTEL_TRACES_SAMPLER_ARG" in rules:
        right.setdefault("OTEL_TRACES_SAMPLER_ARG", "1")  # without one the SDK warns, too
    _correct_sizes(right)
    return right


def _correct_sizes(right: dict[str, str]) -> None:
    """Use both defaults where a batch would not fit into the queue."""
    queue = int(right.get(_QUEUE, _QUEUE_SIZE))
    batch = int(right.get(_BATCH, _BATCH_SIZE))
    if batch <= queue:
        return
    names = " and ".join(name for name in (_QUEUE, _BATCH) if name in right)
    text = "%s: a queue of %d is smaller than a batch of %d spans: %d and %d are used"
    _logger.warning(text, names, queue, batch, _QUEUE_SIZE, _BATCH_SIZE)
    right.pop(_QUEUE, None)
    right.pop(_BATCH, None)


def _warn(name: str, rule: _Rule) -> None:
    _logger.warning("%s is not %s: %s used", name, rule.form, rule.default)


def process_provider() -> trace.TracerProvider:
    """Return this process's tracer provider; one that a variable names and that fails is none.

    The API logs a traceback and raises at each attempt to load it, which would be at each call.
    """
    if _PROVIDER in os.environ:
        silence("opentelemetry.util._providers")
    try:
        return trace.get_tracer_provider()
    except Exception as error:
        os.environ.pop(_PROVIDER, None)  # the next attempt would fail as well
        _logger.warning("%s cannot be loaded (%s): none is used", _PROVIDER, type(error).__name__)
        return trace.get_tracer_provider()
