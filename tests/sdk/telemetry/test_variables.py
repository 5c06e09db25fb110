"""Wrong `OTEL_*` variables: each is one warning that names it, and its default is used."""

from __future__ import annotations

import os
from typing import Any

import pytest
from opentelemetry import trace

from toolbus.telemetry import configure
from toolbus.telemetry.light_spans import PipelineProvider
from toolbus.telemetry.tracing import Tracing
from toolbus.telemetry.variables import corrected_variables, drop_unknown_parts

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
OTLP = "OTEL_EXPORTER_OTLP_"
PYTHON_OTLP = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> list[PipelineProvider]:
    """What `configure` sets, which is not set here: a process can do that once."""
    found: list[PipelineProvider] = []
    monkeypatch.setattr(trace, "set_tracer_provider", found.append)
    return found


@pytest.mark.parametrize(
    ("name", "value", "used"),
    [
        ("OTEL_SDK_DISABLED", "yes", "false is used"),
        ("OTEL_TRACES_EXPORTER", "jaeger", "otlp is used"),
        ("OTEL_TRACES_EXPORTER", "otlp,console", "otlp is used"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "parentbased_always_on is used"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "256", "2048 and 512 are used"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096", "2048 and 512 are used"),
        *(
            ("OTEL_BSP_MAX_QUEUE_SIZE", each, "2048 is used")
            for each in ["many", "0", "1e3", "9" * 30]
        ),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1", "512 is used"),
        ("OTEL_BSP_SCHEDULE_DELAY", "soon", "500 is used"),
        ("OTEL_BSP_SCHEDULE_DELAY", "9" * 5_000, "500 is used"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "1.5", "30000 is used"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "all", "128 is used"),
        ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "-1", "128 is used"),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "long", "4096 is used"),
        *(
            (ENDPOINT, each, "http://localhost:4318 is used")
            for each in [
                "localhost:4318",
                "http://h:x",
                "http://",
                "http://[",
                "grpc://h:4317",
                "http://a b",
            ]
        ),
        (f"{OTLP}TRACES_ENDPOINT", "collector", f"{ENDPOINT}, or else its default, is used"),
        (f"{OTLP}PROTOCOL", "grpc", "http/protobuf is used"),
        (f"{OTLP}TRACES_PROTOCOL", "http/json", "its default, is used"),
        *((f"{OTLP}TIMEOUT", each, "5 is used") for each in ["soon", "nan", "-1", "inf", "0"]),
        (f"{OTLP}COMPRESSION", "zip", "none is used"),
        (f"{OTLP}CERTIFICATE", "/no/such/file", "the usual authorities are used"),
        (f"{OTLP}CLIENT_KEY", "/no/such/file", "none is used"),
        *(
            (f"{OTLP}HEADERS", f"x-a=1,{each}", "the others are used")
            for each in [
                "secret",
                "=secret",
                "x y=secret",
                "x=secret%0d%0ax: y",
                "x=sécret",
                'x="secret"',
            ]
        ),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=a,secret", "the others are used"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=\udcff", "the others are used"),
        ("OTEL_SERVICE_NAME", "\udcff", "the name of the program is used"),
        ("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "cloud", "the others are used"),
        (f"{PYTHON_OTLP}CREDENTIAL_PROVIDER", "mine", "none is used"),
    ],
)
def test_wrong_variable_is_one_warning_and_the_default(
    name: str,
    value: str,
    used: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    providers: list[PipelineProvider],
) -> None:
    monkeypatch.setenv(name, value)
    close = configure("caller")
    assert close is not None
    close()
    [record] = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    text = record.getMessage()
    assert text.startswith(name)
    assert text.endswith(used)
    assert "cret" not in text
    [provider] = providers
    assert Tracing(provider).start_client("words.count", "c1") is not None
    assert os.environ[name] == value  # for child processes


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_BSP_MAX_QUEUE_SIZE": "64", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "64"},
        {"OTEL_TRACES_SAMPLER": "TraceIdRatio", "OTEL_TRACES_SAMPLER_ARG": "0.5"},
        {
            "OTEL_SPAN_EVENT_COUNT_LIMIT": "",
            "OTEL_TRACES_EXPORTER": "",
            "OTEL_BSP_MAX_QUEUE_SIZE": "",
        },
        {f"{OTLP}HEADERS": "x-team=a,authorization=Basic%20a==,", f"{OTLP}COMPRESSION": "gzip"},
        {"OTEL_RESOURCE_ATTRIBUTES": "team=a,region=%E6%9D%B1", "OTEL_SERVICE_NAME": "東"},
        {ENDPOINT: " https://ann:secret@[::1]:4318/otlp", f"{OTLP}TIMEOUT": "0.5"},
    ],
)
def test_right_variables_are_used_without_a_word(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with corrected_variables():
        used = {name: os.environ.get(name, "").lower() for name in variables}
    assert used == {name: value.lower().strip(", ") for name, value in variables.items()}
    assert caplog.records == []


def test_share_that_is_none_samples_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "7")
    with corrected_variables():
        assert os.environ["OTEL_TRACES_SAMPLER_ARG"] == "1"
    [record] = caplog.records
    assert record.getMessage() == "OTEL_TRACES_SAMPLER_ARG is not a number from 0 to 1: 1 is used"


def test_parts_that_fail_for_other_reasons_stop_no_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, providers: list[Any]
) -> None:
    def fail(*_: object, **_named: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("toolbus.telemetry.otlp_exporter.OtlpExporter.from_environment", fail)
    assert configure("caller") is None
    assert providers == []
    [record] = caplog.records
    assert record.getMessage() == "no spans are sent: setting that up failed with RuntimeError"


@pytest.mark.parametrize(
    ("name", "value", "is_used"),
    [
        ("OTEL_PYTHON_CONTEXT", "mine", False),
        ("OTEL_PYTHON_CONTEXT", "contextvars_context", True),
        ("OTEL_PROPAGATORS", "tracecontext,mine", False),
        ("OTEL_PROPAGATORS", "tracecontext, baggage", True),
        ("OTEL_PROPAGATORS", "none", True),
        ("OTEL_PYTHON_METER_PROVIDER", "mine", False),
        ("OTEL_PYTHON_TRACER_PROVIDER", "mine", False),
    ],
)
def test_part_that_is_not_installed_is_one_warning_and_hidden_from_the_api(
    name: str,
    value: str,
    is_used: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(name, value)
    drop_unknown_parts()
    assert (name in os.environ) == is_used
    text = f"{name} names what is not installed: the default is used"
    assert caplog.messages == ([] if is_used else [text])


def test_provider_that_cannot_be_loaded_fails_no_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "mine")
    tracing = Tracing(clock=iter(range(0, 100, 10)).__next__)
    assert [tracing.start_client("words.count", "c1") for _ in range(3)] == [None] * 3
    [record] = caplog.records
    assert "OTEL_PYTHON_TRACER_PROVIDER cannot be loaded" in record.getMessage()
