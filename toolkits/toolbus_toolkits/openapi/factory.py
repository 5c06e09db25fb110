"""The factory `openapi`: the toolkit of an API from a config, for `toolbus host` and builders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, field_validator

from toolbus import OperatorOnly, Toolkit
from toolbus.bounded_logging import bounded_logger
from toolbus_toolkits.credentials import CredentialStore
from toolbus_toolkits.credentials.references import CredentialResolver
from toolbus_toolkits.network import MAX_RESPONSE_BYTES, AddressPolicy
from toolbus_toolkits.openapi.pages import PageRule
from toolbus_toolkits.openapi.toolkit import ApiOptions, OpenApiToolkit

__all__ = ["OpenApiConfig", "openapi"]

_logger = bounded_logger(__name__)
_MAX_LOGGED = 10
"""Operations that are named in the log; `toolbus tools NAME --left-out` names a hundred."""


class OpenApiConfig(BaseModel, frozen=True, extra="forbid"):
    """The description of an API, and how it is called; `ValidationError` for an invalid value."""

    spec: Annotated[str, OperatorOnly] = Field(
        description="The file or the address of the description: OpenAPI 3 or Swagger 2."
    )
    name: Annotated[str, OperatorOnly] = Field(
        "", description="The name of the toolkit; by default from the title of the API."
    )
    server: Annotated[str, OperatorOnly] = Field(
        "", description="The address of the server, in place of those in the description."
    )
    operations: list[str] = Field([], description="Ids of the operations to offer; else all.")
    tags: list[str] = Field([], description="Only operations with one of these tags.")
    methods: list[str] = Field([], description="Only operations with one of these methods.")
    allow_hosts: Annotated[list[str], OperatorOnly] = Field(
        [], description="The hosts that may be reached; by default those of the servers."
    )
    allow_private: Annotated[bool, OperatorOnly] = Field(
        False, description="Whether private and loopback addresses may be reached."
    )
    credentials: Annotated[dict[str, str], OperatorOnly] = Field(
        {}, description="For each security scheme a reference such as ${cred:org/tool/key}."
    )
    pages: Annotated[dict[str, PageRule], OperatorOnly] = Field(
        {}, description="How operations name their next page; their tools return streams."
    )
    media_types: Annotated[dict[str, str], OperatorOnly] = Field(
        {}, description="The only media type of the body of an operation, by id or tool name."
    )
    read_only_methods: Annotated[list[str], OperatorOnly] = Field(
        [], description="A method that changes nothing at this API, such as GET."
    )
    timeout_s: Annotated[float, OperatorOnly] = Field(
        30.0, gt=0, le=600, description="Seconds that one call may take."
    )
    max_response_bytes: Annotated[int, OperatorOnly] = Field(
        MAX_RESPONSE_BYTES, ge=1, description="The most bytes of one response."
    )

    @field_validator("allow_hosts")
    @classmethod
    def _must_be_hosts(cls, hosts: list[str]) -> list[str]:
        AddressPolicy(tuple(hosts))
        return hosts

    @field_validator("read_only_methods")
    @classmethod
    def _must_be_safe(cls, methods: list[str]) -> list[str]:
        return list(ApiOptions(read_only_methods=methods).read_only_methods)

    @field_validator("credentials")
    @classmethod
    def _must_be_references(cls, credentials: dict[str, str]) -> dict[str, str]:
        for name, text in credentials.items():
            if "${cred:" not in text:
                raise ValueError(
                    f"the credential of {name!r} is not a reference: store it with `toolbus "
                    "credential set` and write ${cred:org/tool/key}"
                )
        return credentials


def openapi(config: OpenApiConfig) -> Toolkit:
    """Make the toolkit of an API, from its OpenAPI or Swagger description.

    It is a factory: `toolbus host openapi --spec FILE` hosts it.

    Args:
        config: The description, and how it is called.
    """
    options = ApiOptions(
        name=config.name,
        server=config.server,
        credentials=config.credentials,
        resolver=_resolver() if config.credentials else None,
        allow_private=config.allow_private,
        pages=config.pages,
        media_types=config.media_types,
        read_only_methods=config.read_only_methods,
        timeout_s=config.timeout_s,
        max_response_bytes=config.max_response_bytes,
    )
    is_address = config.spec.lower().startswith(("http://", "https://"))
    make = OpenApiToolkit.from_url if is_address else OpenApiToolkit.from_file
    made = make(
        config.spec if is_address else str(Path(config.spec)),
        operations=config.operations,
        tags=config.tags,
        methods=config.methods,
        allow_hosts=config.allow_hosts,
        options=options,
    )
    _report(made)
    return made


def _report(made: OpenApiToolkit) -> None:
    """Log what a toolkit lacks."""
    for entry in made.left_out[:_MAX_LOGGED]:
        _logger.warning("toolkit %s: %s is left out: %s", made.name, entry.name, entry.reason)
    if len(made.left_out) > _MAX_LOGGED:
        _logger.warning("toolkit %s: operations left out: %d", made.name, len(made.left_out))
    if made.unchecked:
        first = made.unchecked[0]
        _logger.info(
            "toolkit %s: parts of schemas that only the API checks: %d, such as %s of %s",
            *(made.name, len(made.unchecked), first.reason, first.name),
        )
    if made.has_short_texts:
        _logger.info("toolkit %s: long descriptions are cut, so that it fits a room", made.name)


def _resolver() -> CredentialResolver:
    """Return a resolver over the credential store; only an API with credentials needs one."""
    return CredentialResolver(CredentialStore.open())
