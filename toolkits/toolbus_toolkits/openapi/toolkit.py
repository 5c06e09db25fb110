"""The toolkit of an API: chosen operations, each as a tool, and the factory `openapi`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator

from toolbus import OperatorOnly, Toolkit
from toolbus.bounded_logging import bounded_logger
from toolbus.tools.omission import Omission
from toolbus.wire.manifest import MAX_TOOLS
from toolbus_toolkits.credentials import CredentialStore
from toolbus_toolkits.credentials.references import (
    CredentialResolver,
    CredentialSource,
    RedactingFilter,
)
from toolbus_toolkits.network import (
    MAX_RESPONSE_BYTES,
    AddressPolicy,
    AddressRefused,
    host_and_port,
)
from toolbus_toolkits.openapi.arguments import plan_arguments, tool_names, toolkit_name
from toolbus_toolkits.openapi.calls import ApiClient, Credentials
from toolbus_toolkits.openapi.descriptions import read_api
from toolbus_toolkits.openapi.documents import Place, SpecError, load_file, load_url
from toolbus_toolkits.openapi.fitting import Draft, Fitted, choice_of_tags, fit, usable_schemas
from toolbus_toolkits.openapi.model import Api, Operation
from toolbus_toolkits.openapi.requests import check_path, overrides_method, server_of
from toolbus_toolkits.openapi.responses import PageRule
from toolbus_toolkits.openapi.schemas import MAX_TEXT, Definitions
from toolbus_toolkits.openapi.tools import SAFE_METHODS, OperationCall, make_tool

__all__ = ["ApiOptions", "OpenApiConfig", "OpenApiToolkit", "openapi"]


def _listed(texts: Iterable[str], what: str) -> tuple[str, ...]:
    if isinstance(texts, str):
        raise TypeError(f"{what} must be a list of texts, not one text")
    return tuple(texts)


@dataclass(frozen=True)
class ApiOptions:
    """How an API is called.

    Raises `ValueError` for a limit that is not positive, and for a method that is not safe.
    """

    name: str = ""
    """The name of the toolkit; by default from the title of the API."""
    server: str = ""
    """The address of the server, in place of those in the description."""
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The credential of each security scheme, with references such as `${cred:org/tool/key}`."""
    resolver: CredentialSource | None = field(default=None, repr=False)
    """A `CredentialResolver`, which replaces the references at the time of a call."""
    allow_private: bool = False
    """Whether private and loopback addresses may be reached."""
    pages: Mapping[str, PageRule] = field(default_factory=dict)
    """How operations name their next page, by id or tool name; their tools return streams."""
    media_types: Mapping[str, str] = field(default_factory=dict)
    """The only media type of the body of an operation, by id or tool name; else the call chooses
    among those that the description has."""
    read_only_methods: Iterable[str] = ()
    """Methods of which the operator knows that they change nothing at this API, such as "GET": the
    tools of their operations are `read_only`. Those that HTTP calls safe are possible."""
    timeout_s: float = 30.0
    """Seconds that one call may take."""
    max_response_bytes: int = MAX_RESPONSE_BYTES
    """The most bytes of one response."""
    max_upload_bytes: int = 32 * 1024 * 1024
    """The most bytes of the files of one call, which are held in memory."""

    def __post_init__(self) -> None:
        for name in ("timeout_s", "max_response_bytes", "max_upload_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0")
        methods = tuple(
            method.upper() for method in _listed(self.read_only_methods, "read_only_methods")
        )
        for method in methods:
            if method not in SAFE_METHODS:
                known = ", ".join(SAFE_METHODS)
                raise ValueError(f"read_only_methods has {method[:100]!r}: there are {known}")
        object.__setattr__(self, "read_only_methods", methods)


class OpenApiToolkit(Toolkit):
    """An API as a toolkit: a tool for each chosen operation.

    Make it with `from_file` or `from_url`. `left_out` names the operations that have no tool,
    `unchecked` what of the schemas is not checked here, each with the reason.
    """

    has_short_texts: bool = False
    """Whether long descriptions were cut, so that a room takes the toolkit."""

    @property
    def skipped(self) -> tuple[str, ...]:
        """`left_out` as texts: operations without a tool, each with the reason."""
        return tuple(f"{entry.name}: {entry.reason}" for entry in self.left_out)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        operations: Iterable[str] = (),
        tags: Iterable[str] = (),
        methods: Iterable[str] = (),
        allow_hosts: Iterable[str] = (),
        options: ApiOptions = ApiOptions(),
    ) -> Self:
        """Make the toolkit of a description in a file, as JSON or YAML.

        Args:
            path: OpenAPI 3.1, 3.0 or Swagger 2.0.
            operations: The ids or tool names of the operations to offer; all by default.
            tags: Only operations with one of these tags.
            methods: Only operations with one of these methods.
            allow_hosts: The hosts that may be reached; by default those of the servers.
            options: How it is called.

        Raises `ValueError` for a description that cannot be used, a choice that fits nothing, and
        an option that does not fit the description.
        """
        hosts = _listed(allow_hosts, "allow_hosts")
        root = load_file(Path(path), AddressPolicy(hosts, options.allow_private))
        chosen = _Choice.of(operations, tags, methods)
        return cls._of(root, "", chosen, hosts, options)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        operations: Iterable[str] = (),
        tags: Iterable[str] = (),
        methods: Iterable[str] = (),
        allow_hosts: Iterable[str] = (),
        options: ApiOptions = ApiOptions(),
    ) -> Self:
        """Make the toolkit of a description at an address, which is read now.

        Blocks until it is read: use `asyncio.to_thread` where an event loop runs. Otherwise as
        `from_file`.
        """
        hosts = _listed(allow_hosts, "allow_hosts")
        root = load_url(url, AddressPolicy(hosts, options.allow_private))
        chosen = _Choice.of(operations, tags, methods)
        return cls._of(root, url, chosen, hosts, options)

    @classmethod
    def _of(
        cls, root: Place, base: str, choice: _Choice, hosts: tuple[str, ...], options: ApiOptions
    ) -> Self:
        api = read_api(root)
        maker = _ToolMaker(api, base, choice, hosts, options)
        fitted = maker.make()
        made = cls(
            maker.toolkit,
            fitted.tools,
            title=api.title[:200] or None,
            description=api.description[:MAX_TEXT],
            version=api.version[:128],
            left_out=maker.left_out,
            unchecked=maker.unchecked,
            errors="class",  # what a library raises may have the value of a credential
        )
        made.size_hint = fitted.hint
        made.has_short_texts = fitted.is_cut
        if options.resolver is not None:
            made.log_filters = (RedactingFilter(options.resolver),)
        return made


@dataclass(frozen=True)
class _Choice:
    """Which operations are offered."""

    operations: tuple[str, ...]
    tags: tuple[str, ...]
    methods: tuple[str, ...]

    @classmethod
    def of(cls, operations: Iterable[str], tags: Iterable[str], methods: Iterable[str]) -> _Choice:
        upper = tuple(method.upper() for method in _listed(methods, "methods"))
        return cls(_listed(operations, "operations"), _listed(tags, "tags"), upper)

    def apply(self, api: Api, names: Mapping[tuple[str, str], str]) -> list[Operation]:
        """Return the operations that are chosen. Raises `ValueError` for a choice without any."""
        known = {operation.id for operation in api.operations} | set(names.values())
        for name in self.operations:
            if name not in known:
                near = get_close_matches(name, known - {""}, n=2)
                hint = _first("; not usable is ", api.left_out)
                if near:
                    hint = f"; did you mean {' or '.join(near)}?"
                raise SpecError(f"the description has no operation {name[:100]!r}{hint}")
        used = {tag for operation in api.operations for tag in operation.tags}
        for tag in self.tags:
            if tag not in used:
                tags = ", ".join(sorted(used)) or "none"
                raise SpecError(f"no operation has the tag {tag[:100]!r}: there are {tags[:500]}")
        found = [operation for operation in api.operations if self._has(operation, names)]
        if not found:
            why = _first(": ", api.left_out)
            raise SpecError(f"no operation of the description is chosen{why}")
        return found

    def _has(self, operation: Operation, names: Mapping[tuple[str, str], str]) -> bool:
        name = names[operation.key]
        return (
            (not self.operations or bool({operation.id, name}.intersection(self.operations)))
            and (not self.tags or bool(set(operation.tags).intersection(self.tags)))
            and (not self.methods or operation.method in self.methods)
        )


class _ToolMaker:
    """Makes the tools of one API."""

    def __init__(
        self, api: Api, base: str, choice: _Choice, hosts: tuple[str, ...], options: ApiOptions
    ) -> None:
        self._api = api
        self._base = base
        self._choice = choice
        self._hosts = hosts
        self._options = options
        self.toolkit: str = options.name or toolkit_name(api.title)
        """Its name."""
        self._names = tool_names(api.operations)
        self._definitions = Definitions(api.dialect)
        self.left_out = list(api.left_out)
        self.unchecked: list[Omission] = []

    def make(self) -> Fitted:
        """Make the tools of the chosen operations. Raises `ValueError`."""
        operations = self._choice.apply(self._api, self._names)
        if len(operations) > MAX_TOOLS:
            raise SpecError(
                f"{len(operations):,} operations are chosen, at most {MAX_TOOLS:,} fit into one "
                f"toolkit: {choice_of_tags(operations)}"
            )
        servers = self._servers(operations)
        hosts = self._hosts or tuple(sorted(_hosts_of(set(servers.values()))))
        policy = AddressPolicy(hosts, self._options.allow_private)
        client = ApiClient(
            policy,
            Credentials(self._api.schemes, self._options.credentials, self._options.resolver),
            timeout_s=self._options.timeout_s,
            max_response_bytes=self._options.max_response_bytes,
        )
        calls: list[OperationCall] = []
        for operation in operations:
            if operation.key in servers:
                try:
                    policy.check_url(servers[operation.key])
                    calls.append(self._call(operation, servers[operation.key], client))
                except (AddressRefused, ValueError) as error:
                    self._skip(operation, str(error))
        fitted = self._fitted(calls)
        if not fitted.tools:
            raise SpecError(f"no chosen operation is usable{_first(': ', self.left_out)}")
        self._check_names("pages", self._options.pages)
        self._check_names("media_types", self._options.media_types)
        return fitted

    def _fitted(self, calls: Sequence[OperationCall]) -> Fitted:
        schemas = usable_schemas((call.plan for call in calls), self._definitions)
        users: dict[str, list[str]] = {}
        drafts: list[Draft] = []
        for call, usable in zip(calls, schemas, strict=True):
            name = self._names[call.operation.key]
            drafts.append(
                Draft(call.operation, usable.schema, partial(make_tool, name, self._api, call))
            )
            for line in usable.dropped:
                users.setdefault(line, []).append(name)
        for line, names in users.items():
            if len(names) > 1:
                line = f"{line[:400]} (and of {len(names) - 1} more tools)"
            self.unchecked.append(Omission(names[0], line))
        fitted = fit(drafts)
        labels = {call.operation.label: call.operation for call in calls}
        for entry in fitted.left_out:
            self._skip(labels[entry.name], entry.reason)
        return fitted

    def _servers(self, operations: Sequence[Operation]) -> dict[tuple[str, str], str]:
        """Return the address of the server of each operation that has one."""
        given = self._options.server.rstrip("/")
        if given and urlsplit(given).scheme not in ("http", "https"):
            raise SpecError(f"server {given[:100]!r} does not begin with http:// or https://")
        found: dict[tuple[str, str], str] = {}
        for operation in operations:
            try:
                found[operation.key] = given or server_of(operation, self._base)
            except SpecError as error:
                self._skip(operation, str(error))
        return found

    def _call(self, operation: Operation, server: str, client: ApiClient) -> OperationCall:
        """Plan the calls of an operation. Raises `ValueError`."""
        name = self._names[operation.key]
        rule = self._options.pages.get(name) or self._options.pages.get(operation.id or name)
        if rule is not None and operation.method != "GET":
            raise SpecError("pages are for GET only")
        check_path(operation)
        operation = self._with_media_type(operation, name)
        plan = plan_arguments(operation, self._definitions.writer())
        self._definitions.closure(plan.definitions)  # all of them can be read
        return OperationCall(
            operation,
            server,
            plan,
            client,
            self._options.max_upload_bytes,
            rule,
            full_name=f"{self.toolkit}.{name}",
            read_only=operation.method in self._options.read_only_methods
            and not overrides_method(operation),
        )

    def _with_media_type(self, operation: Operation, name: str) -> Operation:
        """Return an operation whose body has only the media type that the operator names."""
        named = self._options.media_types
        wanted = named.get(name) or named.get(operation.id or name)
        if wanted is None:
            return operation
        types = operation.body.media_types if operation.body is not None else ()
        matching = tuple(media_type for media_type in types if media_type.name == wanted.lower())
        if operation.body is None or not matching:
            known = ", ".join(media_type.name for media_type in types) or "no body"
            raise SpecError(f"media_types has {wanted[:100]!r}, but there is {known[:500]}")
        return replace(operation, body=replace(operation.body, media_types=matching))

    def _check_names(self, option: str, given: Iterable[str]) -> None:
        known = set(self._names.values()) | {operation.id for operation in self._api.operations}
        for name in given:
            if name not in known:
                raise SpecError(f"{option} has {name[:100]!r}, which is no operation")

    def _skip(self, operation: Operation, reason: str) -> None:
        entry = Omission(operation.label, reason)
        if self._choice.operations:
            raise SpecError(f"{entry.name}: {entry.reason}")
        self.left_out.append(entry)


def _first(before: str, left_out: Sequence[Omission]) -> str:
    """Return some words and the first entry of a list; nothing if it is empty."""
    return "".join(f"{before}{entry.name}: {entry.reason}" for entry in left_out[:1])


def _hosts_of(servers: Iterable[str]) -> Iterable[str]:
    """Give the host and port of each server, but no address that only an operator may name."""
    unlisted = AddressPolicy(allow_private=True)
    for server in servers:
        try:
            unlisted.check_url(server)
            yield host_and_port(server)
        except AddressRefused:
            continue


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
        resolver=CredentialResolver(CredentialStore.open()) if config.credentials else None,
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
        config.spec,
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
