"""The tools of an API: one for each operation, by what it takes and what it returns."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from toolbus import (
    FileChunk,
    InputStream,
    InvalidArguments,
    JsonChunk,
    Tool,
    ToolContext,
    ToolFailed,
)
from toolbus.permissions.assessment import Assessment, assessment_of_flags
from toolbus.permissions.rule import Rule
from toolbus.schemas.text import shortened
from toolbus.untrusted_text import one_line
from toolbus_toolkits.credentials.references import refuse_references
from toolbus_toolkits.openapi.arguments import Arguments
from toolbus_toolkits.openapi.calls import ApiClient
from toolbus_toolkits.openapi.fitting import TextLimits
from toolbus_toolkits.openapi.model import Api, Operation
from toolbus_toolkits.openapi.requests import (
    ArgumentRefused,
    PreparedRequest,
    ReadFile,
    prepare,
    write_body,
)
from toolbus_toolkits.openapi.responses import PageRule, next_request, result_of

__all__ = ["SAFE_METHODS", "OperationCall", "make_tool"]

SAFE_METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")
"""The methods that change nothing where a server keeps to HTTP (RFC 9110)."""
# A person decides by them about a call: its URL and its body may have megabytes.
_MAX_SHOWN_CHARS = 1_000
_MAX_PREVIEW_CHARS = 16_000


@dataclass(frozen=True)
class OperationCall:
    """An operation that is ready to be called."""

    operation: Operation
    server: str
    plan: Arguments
    client: ApiClient
    max_upload_bytes: int
    pages: PageRule | None = None
    full_name: str = ""
    """`toolkit.tool`."""
    read_only: bool = False
    """Whether the operator says that it changes nothing."""

    async def run(
        self,
        context: ToolContext,
        arguments: dict[str, Any],
        attachments: AsyncIterable[FileChunk] | None = None,
    ) -> Any:
        """Call the operation and return its result. Raises `ArgumentRefused` for large files."""
        with _refusals(context):
            files: list[ReadFile] = []
            if attachments is not None:
                files = [file async for file in self._read(attachments)]
            request = self.prepare(arguments, files)
            response, _ = await self.client.send(context, self.operation, request)
            return result_of(self.operation, response, self.client.credentials.redact)

    async def run_pages(
        self, context: ToolContext, arguments: dict[str, Any], rule: PageRule
    ) -> AsyncIterator[Any]:
        """Call the operation page by page, and yield each page.

        An error after the first page never says that nothing ran.
        """
        request: PreparedRequest | None = self.prepare(arguments, [])
        is_answered = False
        try:
            for _ in range(rule.max_pages):
                if request is None:
                    return
                response, url = await self.client.send(context, self.operation, request)
                is_answered = True
                page = result_of(self.operation, response, self.client.credentials.redact)
                yield page
                value = page.json if isinstance(page, JsonChunk) else None
                request = next_request(rule, request, response, value, url)
        except (InvalidArguments, ToolFailed) as error:
            if is_answered and error.executed == "no":
                error.executed = "yes"
            raise

    def prepare(self, arguments: dict[str, Any], files: list[ReadFile]) -> PreparedRequest:
        """Make the request of a call. Raises `InvalidArguments` for a reference in arguments."""
        refuse_references(arguments)
        return prepare(self.operation, self.server, self.plan, arguments, files)

    def shown(self, arguments: dict[str, Any]) -> tuple[str, str]:
        """Return the request of a call in words, and its body, without any credential.

        Both are cut. Raises `InvalidArguments` and `ArgumentRefused` as `prepare` does.
        """
        refuse_references(arguments)
        plan = self.plan
        request = prepare(self.operation, self.server, replace(plan, body=None), arguments, [])
        words, preview = f"{request.method} {request.url}", ""
        if plan.takes_files:  # an assessment has the arguments alone
            words += " with files, if the call has some"
        elif plan.body is not None and (body := write_body(plan.body, arguments, [])) is not None:
            words += f" with {len(body.content):,} bytes of {body.media_type}"
            preview = body.content[: 4 * _MAX_PREVIEW_CHARS].decode(errors="replace")
        redact = self.client.credentials.redact
        return one_line(redact(words), _MAX_SHOWN_CHARS), redact(preview)[:_MAX_PREVIEW_CHARS]

    async def _read(self, attachments: AsyncIterable[FileChunk]) -> AsyncIterator[ReadFile]:
        """Read the files of a call into memory."""
        left = self.max_upload_bytes
        async for file in attachments:
            pieces: list[bytes] = []
            async for piece in file.pieces():
                left -= len(piece)
                if left < 0:
                    text = f"the files have more than {self.max_upload_bytes:,} bytes"
                    raise ArgumentRefused("attachment", text)
                pieces.append(piece)
            kind = file.mime_type
            if not (kind.isascii() and kind.isprintable()):  # it would not be a header
                kind = ""
            yield ReadFile(file.name, kind, b"".join(pieces))


@contextmanager
def _refusals(context: ToolContext) -> Iterator[None]:
    """Keep the answer of an error that nothing ran: the function of such a tool is the server."""
    try:
        yield
    except (InvalidArguments, ToolFailed) as error:
        if error.executed == "no":
            context.refuse(error)
        raise


class _ApiTool(Tool):
    """What the tools of an API share."""

    marks_entry = True  # set when the server has answered
    schemas_are_checked = True  # by `usable_schemas`

    def __init__(self, call: OperationCall, **definition: Any) -> None:
        super().__init__(**definition)
        self._call = call

    async def start(self, room: Any) -> None:
        await self._call.client.start()

    async def stop(self) -> None:
        await self._call.client.stop()

    async def assess(self, context: ToolContext, arguments: dict[str, Any]) -> Assessment:
        """Say which request a call would send, by the flags of the operation."""
        try:
            message, preview = self._call.shown(arguments)
        except (InvalidArguments, ToolFailed) as error:
            message, preview = f"its request cannot be made: {error.message}", ""
        return replace(
            assessment_of_flags(self.manifest()),
            message=message,
            preview=preview,
            suggestions=(Rule(behavior="allow", tool=self._call.full_name),),
        )


class CallTool(_ApiTool):
    """Takes arguments and returns one result."""

    async def execute(self, context: ToolContext, /, **arguments: Any) -> Any:
        """Call the operation."""
        return await self._call.run(context, arguments)


class PagedTool(_ApiTool):
    """Returns the pages of a result as a stream."""

    async def execute(self, context: ToolContext, /, **arguments: Any) -> AsyncIterator[Any]:
        """Call the operation page by page."""
        rule = self._call.pages
        assert rule is not None
        with _refusals(context):
            async for page in self._call.run_pages(context, arguments, rule):
                yield page


class UploadTool(_ApiTool):
    """Takes a file beside its arguments."""

    async def execute(
        self, context: ToolContext, /, attachment: FileChunk, **arguments: Any
    ) -> Any:
        """Call the operation with the file."""
        return await self._call.run(context, arguments, InputStream([attachment]))


class OptionalUploadTool(_ApiTool):
    """Takes a file beside its arguments, or none."""

    async def execute(
        self, context: ToolContext, /, attachment: FileChunk | None = None, **arguments: Any
    ) -> Any:
        """Call the operation, with the file if there is one."""
        files = [attachment] if attachment is not None else []
        return await self._call.run(context, arguments, InputStream(files))


class FilesTool(_ApiTool):
    """Takes several files beside its arguments."""

    async def execute(
        self,
        context: ToolContext,
        /,
        attachment: InputStream[FileChunk] | None = None,
        **arguments: Any,
    ) -> Any:
        """Call the operation with the files, in the order of its fields."""
        return await self._call.run(context, arguments, attachment)


def make_tool(
    name: str, api: Api, call: OperationCall, schema: dict[str, Any], limits: TextLimits
) -> Tool:
    """Make the tool of an operation. Raises `ValueError`.

    Args:
        name: Its name.
        api: The API.
        call: The operation.
        schema: The schema of its arguments, which was checked.
        limits: The most characters of its description.
    """
    operation = call.operation
    # HTTP says what a method means, and not what a server does with it: a GET that deletes is a
    # mistake that many APIs have. What only orders or repeats calls may still go by the method.
    is_safe = operation.method in SAFE_METHODS
    tool = _class_of(call)(
        call,
        name=name,
        title=(operation.summary or operation.id or operation.label)[:200],
        description=shortened(_description(api, call), limits.tool),
        input_schema=schema,
        read_only=call.read_only,
        concurrency_safe=is_safe or None,
        idempotent=is_safe or operation.method in ("PUT", "DELETE"),
        destructive=operation.method == "DELETE",
        open_world=True,
    )
    tool.manifest()
    return tool


def _class_of(call: OperationCall) -> type[_ApiTool]:
    if call.pages is not None:
        return PagedTool
    match call.plan.takes_files:
        case "many":
            return FilesTool
        case "one":
            body = call.plan.body
            return UploadTool if body is not None and body.files_required else OptionalUploadTool
    return CallTool


def _description(api: Api, call: OperationCall) -> str:
    operation = call.operation
    parts = [operation.summary, operation.description]
    if not any(parts):
        parts = [f"{operation.label} of {api.title}".removesuffix(" of ")]
    if operation.deprecated:
        parts.append("Deprecated.")
    forms = () if call.plan.body is None else call.plan.body.forms
    if files := dict.fromkeys(name for form in forms for name in form.files):
        parts.append(f"Files, in this order: {', '.join(files)}.")
    different = dict.fromkeys(text.strip() for text in parts if text.strip())
    return "\n\n".join(different)
