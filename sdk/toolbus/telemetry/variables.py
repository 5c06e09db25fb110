"""Checks the `OTEL_*` variables, so that a wrong one costs a warning and not the program.

OpenTelemetry raises for some wrong values, also while it is imported, logs a traceback for others,
and uses some as they are until a request fails. Here each wrong value is removed before it is read,
so that the default counts, and named in one warning. No value is shown: a header or an address may
contain a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from toolbus.bounded_logging import bounded_logger

__all__ = ["asks_for_spans", "corrected_variables", "drop_unknown_parts"]

_logger = bounded_logger("toolbus.telemetry.tracing")
_MAX_NUMBER = 2**31 - 1
"""Above it a queue cannot be made, and a thread cannot wait that long."""
_PARTS = {
    "OTEL_PYTHON_CONTEXT": "opentelemetry_context",
    "OTEL_PROPAGATORS": "opentelemetry_propagator",
    "OTEL_PYTHON_TRACER_PROVIDER": "opentelemetry_tracer_provider",
    "OTEL_PYTHON_METER_PROVIDER": "opentelemetry_meter_provider",
}
_EXPORTER = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$&'*+.^_`|~-]+")
_SIZES = {"OTEL_BSP_MAX_QUEUE_SIZE": 2_048, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": 512}


class _Rule(NamedTuple):
    """What a variable must be, and what is used in place of a wrong value."""

    form: str
    used: str
    check: Callable[[str], object]
    """Returns something false, or raises `ValueError`, for a wrong value."""
    is_list: bool = False
    """Whether each entry of the value is checked by itself."""


def _is_address(value: str) -> bool:
    parts = urlsplit(value)
    _ = parts.port  # raises ValueError for a port that is not valid
    is_plain = value.isprintable() and " " not in value
    return is_plain and parts.scheme in {"http", "https"} and bool(parts.hostname)


def _is_header(entry: str) -> bool:
    # A value that requests would not send fails each export, without a word about the variable.
    name, equals, value = entry.partition("=")
    text = unquote(value)
    is_sendable = text.isascii() and text.isprintable() and not set(value) & set('";\\')
    return bool(equals) and is_sendable and _HEADER_NAME.fullmatch(name.strip()) is not None


def _count(lowest: int, default: int) -> _Rule:
    form = f"a whole number from {lowest} to {_MAX_NUMBER}"
    return _Rule(form, f"{default} is", lambda value: lowest <= int(value) <= _MAX_NUMBER)


def _choice(default: str, *names: str) -> _Rule:
    return _Rule(
        f"one of {', '.join(names)}", f"{default} is", lambda value: value.lower() in names
    )


_SWITCH = _choice("false", "true", "false")
_CREDENTIALS = _Rule(
    "the name of an installed credential provider",
    "none is",
    lambda name: entry_points(group="opentelemetry_otlp_credential_provider", name=name),
)
_OTLP: Mapping[str, _Rule] = {
    "ENDPOINT": _Rule("an http:// or https:// address", "http://localhost:4318 is", _is_address),
    "PROTOCOL": _Rule(
        "http/protobuf", "http/protobuf is", lambda value: value.lower() == "http/protobuf"
    ),
    "HEADERS": _Rule("name=value pairs of headers", "the others are", _is_header, is_list=True),
    "TIMEOUT": _Rule(
        "a number above 0", "5 is", lambda value: 0.001 <= float(value) <= _MAX_NUMBER
    ),
    "COMPRESSION": _choice("none", "gzip", "deflate", "none"),
    "CERTIFICATE": _Rule("a file that exists", "the usual authorities are", os.path.exists),
    "CLIENT_CERTIFICATE": _Rule("a file that exists", "none is", os.path.exists),
    "CLIENT_KEY": _Rule("a file that exists", "none is", os.path.exists),
}
_LIMITED = "ATTRIBUTE SPAN_ATTRIBUTE EVENT_ATTRIBUTE LINK_ATTRIBUTE SPAN_EVENT SPAN_LINK".split()
_RULES: Mapping[str, _Rule] = {
    "OTEL_SDK_DISABLED": _SWITCH,
    "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": _SWITCH,
    # Bytes that are not UTF-8 are surrogates here, and no span can be encoded with them.
    "OTEL_SERVICE_NAME": _Rule("text in UTF-8", "the name of the program is", str.encode),
    "OTEL_RESOURCE_ATTRIBUTES": _Rule(
        "name=value pairs in UTF-8",
        "the others are",
        lambda entry: entry.find("=") > 0 and entry.encode(),
        is_list=True,
    ),
    "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": _Rule(
        "names of installed detectors",
        "the others are",
        lambda name: (
            name == "*" or entry_points(group="opentelemetry_resource_detector", name=name)
        ),
        is_list=True,
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
    **{name: _count(1, size) for name, size in _SIZES.items()},
    "OTEL_BSP_SCHEDULE_DELAY": _count(1, 500),
    "OTEL_BSP_EXPORT_TIMEOUT": _count(1, 30_000),
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": _count(0, 4_096),
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": _count(0, 4_096),
    **{f"OTEL_{counted}_COUNT_LIMIT": _count(0, 128) for counted in _LIMITED},
    **{
        f"OTEL_EXPORTER_OTLP_TRACES_{name}": rule
        if rule.is_list
        else rule._replace(used=f"OTEL_EXPORTER_OTLP_{name}, or else its default, is")
        for name, rule in _OTLP.items()
    },
    **{f"OTEL_EXPORTER_OTLP_{name}": rule for name, rule in _OTLP.items()},
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER": _CREDENTIALS,
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER": _CREDENTIALS,
}


def drop_unknown_parts() -> None:
    """Remove the variables that name parts of OpenTelemetry which are not installed.

    The API loads these parts by name whenever something first uses them: a context at its import,
    propagators when the MCP SDK is imported, a provider at the first call. A name that is not
    installed is a traceback in the log there, or an exception. So this runs before anything of
    OpenTelemetry is imported, in every process that imports toolbus.
    """
    for variable in _PARTS.keys() & os.environ.keys():
        value = os.environ[variable]
        names = [name.strip() for name in value.split(",")]
        if variable == "OTEL_PROPAGATORS" and "none" in map(str.lower, names):
            continue
        if not all(entry_points(group=_PARTS[variable], name=name) for name in names):
            del os.environ[variable]
            if value.strip():
                _logger.warning("%s names what is not installed: the default is used", variable)


def asks_for_spans(environ: Mapping[str, str]) -> bool:
    """Whether the variables ask for spans; an unknown exporter is a warning, and counts as none."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    named = {name.strip() for name in environ.get(_EXPORTER, "").lower().split(",")} - {""}
    if named - {"otlp", "none"}:
        _logger.warning("%s is not otlp or none: an endpoint decides, and otlp is used", _EXPORTER)
    if "otlp" in named or "none" in named:
        return "otlp" in named
    return any(environ.get(name) for name in _ENDPOINTS)


@contextmanager
def corrected_variables() -> Iterator[None]:
    """Replace wrong variables of this process for the block, in which the SDK reads them.

    A child process that starts later gets them as they were, and warns itself.
    """
    drop_unknown_parts()
    given = dict(os.environ)
    for name, rule in _RULES.items():
        _correct(name, rule)
    if "ratio" in os.environ.get("OTEL_TRACES_SAMPLER", "").lower():
        rule = _Rule("a number from 0 to 1", "1 is", lambda value: 0 <= float(value) <= 1)
        _correct("OTEL_TRACES_SAMPLER_ARG", rule)
        os.environ.setdefault("OTEL_TRACES_SAMPLER_ARG", "1")  # without one the SDK warns, too
    _correct_sizes()
    try:
        yield
    finally:
        for name in [*_RULES, "OTEL_TRACES_SAMPLER_ARG"]:
            if name in given:
                os.environ[name] = given[name]
            else:
                os.environ.pop(name, None)


def _correct(name: str, rule: _Rule) -> None:
    """Remove what is wrong of a variable, with a warning."""
    value = os.environ.get(name, "")
    entries = value.split(",") if rule.is_list else [value]
    entries = [entry.strip() for entry in entries if entry.strip()]
    right = []
    for entry in entries:
        with suppress(ValueError):
            if rule.check(entry):
                right.append(entry)
    if len(right) < len(entries):
        _logger.warning("%s is not %s: %s used", name, rule.form, rule.used)
    if right:
        os.environ[name] = ",".join(right)
    elif entries or not name.endswith("_LIMIT"):  # an empty limit means none to the SDK
        os.environ.pop(name, None)


def _correct_sizes() -> None:
    """Use both defaults where a batch would not fit into the queue."""
    queue, batch = [int(os.environ.get(name, size)) for name, size in _SIZES.items()]
    if batch > queue:
        names = " and ".join(name for name in _SIZES if name in os.environ)
        text = "%s: a queue of %d is smaller than a batch of %d spans: %d and %d are used"
        _logger.warning(text, names, queue, batch, *_SIZES.values())
        for name in _SIZES:
            os.environ.pop(name, None)


drop_unknown_parts()
