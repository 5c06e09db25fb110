"""The input of a running tool: which parameter gets it, and with which type."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel

from toolbus import (
    Chunk,
    FileChunk,
    FunctionTool,
    InputStream,
    InvalidArguments,
    JsonChunk,
    Records,
    Tool,
    ToolContext,
    ToolFailed,
    Toolkit,
)
from toolbus.middlewares import Log

if TYPE_CHECKING:
    from toolbus import InputStream as LateStream


class Row(BaseModel):
    number: int
    on: date | None = None


NEEDS_ATTACHMENT = "needs an attachment: attachment= of room.invoke, --attach of `toolbus call`"
NEEDS_INPUT = "needs an input: input= of room.stream, --input of `toolbus call`"


async def run(made: Any, values: Any = None, /, **arguments: Any) -> Any:
    kit = Toolkit("t", [made])
    stream: InputStream[Any] | None = None if values is None else InputStream(values)
    async with asyncio.timeout(60):
        context = ToolContext()
        return (await kit.execute(context, kit.tools[0].name, arguments, stream)).value


async def refusal(made: Any, values: Any = None, /) -> str:
    """Run a tool that refuses its input before it starts; return the message."""
    kit = Toolkit("t", [made])
    stream: InputStream[Any] | None = None if values is None else InputStream(values)
    with pytest.raises(InvalidArguments) as raised:
        await kit.execute(ToolContext(), kit.tools[0].name, {}, stream)
    assert raised.value.executed == "no"
    return str(raised.value)


async def total(rows: InputStream[Row], start: int = 0) -> list[Any]:
    return [start, *[(row.number, str(row.on)) async for row in rows]]


async def texts(message: InputStream[str] | None = None) -> Any:
    return None if message is None else [word async for word in message]


async def sizes(data: Annotated[InputStream[bytes], "the files"]) -> list[int]:
    return [len(piece) async for piece in data]


async def upload(attachment: FileChunk) -> Any:
    data = await attachment.read()
    return [attachment.name, attachment.mime_type, len(data)]


async def maybe_upload(attachment: FileChunk | None = None) -> Any:
    return None if attachment is None else len(await attachment.read())


# Files


@pytest.mark.parametrize("middlewares", [[], [Log()]])
@pytest.mark.parametrize("form", ["bytes", "path", "str", "file", "pieces"])
async def test_execute_takes_an_attachment_in_every_form_of_a_call(
    tmp_path: Path, form: str, middlewares: list[Log]
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"in"

    path = tmp_path / "a.txt"
    path.write_bytes(b"in")
    forms = {"bytes": b"in", "path": path, "str": str(path), "file": FileChunk(b"in", "a.txt")}
    kit = Toolkit("t", [upload, sizes], middlewares=middlewares)
    for name, result in (("upload", 2), ("sizes", [2])):
        sent = forms.get(form, pieces())
        value: Any = (await kit.execute(ToolContext(), name, {}, attachment=sent)).value
        assert (value[2] if name == "upload" else value) == result


@pytest.mark.parametrize("middlewares", [[], [Log()]])
async def test_attachment_that_cannot_be_sent_runs_nothing(
    tmp_path: Path, middlewares: list[Log]
) -> None:
    records = Records.memory()
    kit = Toolkit("t", [maybe_upload], middlewares=middlewares, records=records)
    for sent, error in ((7, InvalidArguments), (tmp_path / "absent", FileNotFoundError)):
        with pytest.raises(error, match=r"must be bytes, a path|No such file"):
            await kit.execute(ToolContext(), "maybe_upload", {}, sent)
        last = records.calls()[0]
        assert (last.outcome, last.executed, last.decision) == ("invalid_arguments", "no", "denied")


# Values


async def test_values_are_checked_and_converted_one_by_one() -> None:
    rows = [{"number": 1}, {"number": 2, "on": "2026-01-02"}]
    assert await run(total, rows, start=5) == [5, [1, "None"], [2, "2026-01-02"]]


async def test_invalid_value_raises_with_its_path_when_it_is_read() -> None:
    seen: list[int] = []

    async def rows(rows: InputStream[Row]) -> None:
        async for row in rows:
            seen.append(row.number)

    with pytest.raises(InvalidArguments) as raised:
        await run(rows, [{"number": 1}, {"number": "x"}])
    assert raised.value.details["path"] == "/input/1/number"
    assert raised.value.executed == "yes"
    assert seen == [1]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (Any, [1, None, "a", [2]], [1, None, "a", [2]]),
        (str, ["a", "b"], ["a", "b"]),
        (int | None, [1, None], [1, None]),
        (dict[str, int], [{"a": 1}], [{"a": 1}]),
        (JsonChunk, [[1]], [JsonChunk([1])]),
        (FileChunk, [b"x"], [FileChunk(b"x")]),
        (bytes, [b"x" * 70_000, b"", b"y"], [b"x" * 65_536, b"x" * 4_464, b"y"]),
    ],
    ids=str,
)
async def test_values_have_the_type_of_the_annotation(
    kind: Any, values: list[Any], expected: list[Any]
) -> None:
    got: list[Any] = []

    async def take(stream: Any) -> None:
        got.extend([item async for item in stream])

    take.__annotations__["stream"] = InputStream[kind]
    await run(take, values)
    assert got == expected


@pytest.mark.parametrize(("kind", "value"), [(bytes, "text"), (FileChunk, "text"), (Row, b"file")])
async def test_chunk_of_another_kind_is_refused(kind: Any, value: Any) -> None:
    async def take(stream: Any) -> None:
        async for _ in stream:
            pass

    take.__annotations__["stream"] = InputStream[kind]
    with pytest.raises(InvalidArguments) as raised:
        await run(take, [value])
    assert raised.value.details["path"].startswith("/input/0")


async def test_an_input_may_be_an_async_iterable() -> None:
    async def message() -> AsyncIterator[str]:
        yield "a"
        yield "b"

    assert await run(texts, message()) == ["a", "b"]


@pytest.mark.parametrize("value", ["text", b"bytes", {"a": 1}], ids=repr)
def test_single_value_is_not_an_input(value: Any) -> None:
    with pytest.raises(TypeError, match="a list of values"):
        InputStream(value)


async def test_an_input_is_read_by_one_task_at_a_time() -> None:
    more = asyncio.Event()

    async def slow() -> AsyncIterator[int]:
        await more.wait()
        yield 1

    stream: InputStream[Any] = InputStream(slow())
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="another task"):
        await anext(stream)
    more.set()
    assert await first == JsonChunk(1)


async def test_sync_tool_reads_its_input_on_its_thread() -> None:
    def take(rows: InputStream[Row]) -> list[int]:
        return [row.number for row in rows]

    def pieces(data: InputStream[bytes]) -> int:
        return sum(len(piece) for piece in data)

    assert await run(take, [{"number": 3}, {"number": 4}]) == [3, 4]
    assert await run(pieces, [b"x" * 100_000, b"y"]) == 100_001
    with pytest.raises(InvalidArguments):
        await run(take, [{"number": 3}, 4])


async def test_for_on_the_event_loop_is_a_type_error() -> None:
    async def take(rows: InputStream[Row]) -> None:
        list(rows)

    with pytest.raises(ToolFailed) as raised:
        await run(take, [])
    assert "async for" in str(raised.value.__cause__)


# The parameter


@pytest.mark.parametrize("made", [total, texts, sizes, upload, maybe_upload])
def test_the_parameter_that_takes_the_input_is_not_in_the_schema(made: Any) -> None:
    schema = FunctionTool(made).manifest().input_schema
    assert schema["properties"].keys() == ({"start"} if made is total else set())


async def test_upload_is_passed_as_a_file() -> None:
    async def bare(attachment) -> int:  # type: ignore[no-untyped-def]  # the point
        return len(await attachment.read())

    file = FileChunk(b"abc", "a.txt", "text/plain")
    assert await run(upload, [file]) == ["a.txt", "text/plain", 3]
    assert await run(maybe_upload, [file]) == 3
    assert await run(bare, [file]) == 3


async def test_argument_named_attachment_that_is_not_a_file_stays_an_argument() -> None:
    async def link(attachment: str) -> str:
        return attachment

    class Linked(Tool):
        name = "linked"
        input_schema = {"properties": {"attachment": {"type": "string"}}}  # noqa: RUF012

        async def execute(self, context: ToolContext, /, attachment: str = "") -> Any:
            return attachment

    assert await run(link, attachment="a") == "a"
    assert await run(Linked(), attachment="a") == "a"
    assert await refusal(Linked(), [b"a"]) == "linked takes no attachment and no input"


async def test_unexpected_and_missing_inputs_are_refused() -> None:
    async def plain() -> None: ...

    assert await refusal(plain, [1]) == "plain takes no attachment and no input"
    assert await refusal(total) == f"total {NEEDS_INPUT}"
    assert await refusal(sizes) == f"sizes {NEEDS_ATTACHMENT}"
    assert await refusal(upload) == f"upload {NEEDS_ATTACHMENT}"
    assert await refusal(upload, []) == f"upload {NEEDS_ATTACHMENT}"
    assert "not a file" in await refusal(upload, ["text"])
    assert "not a file" in await refusal(maybe_upload, ["text"])


async def test_default_is_used_if_no_input_is_sent() -> None:
    assert await run(texts) is None
    assert await run(maybe_upload) is None
    assert await run(maybe_upload, []) is None
    assert await run(texts, []) == []


async def test_class_based_tool_gets_chunks_without_an_annotation() -> None:
    class Take(Tool):
        name = "take"
        input_schema: dict[str, Any] = {}  # noqa: RUF012

        async def execute(self, context: ToolContext, /, attachment=None) -> Any:  # type: ignore[no-untyped-def]
            return None if attachment is None else [repr(piece) async for piece in attachment]

    class Chosen(Take):
        async def execute(
            self, context: ToolContext, /, attachment: InputStream[Chunk] | None = None
        ) -> Any:
            return await super().execute(context, attachment)

    class Typed(Tool):
        name = "typed"
        input_schema: dict[str, Any] = {}  # noqa: RUF012

        async def execute(self, context: ToolContext, /, attachment: Any) -> Any:
            return [row.number async for row in attachment.of(Row)]

    for take in (Take(), Chosen()):
        assert await run(take) is None
        assert await run(take, [1, "a"]) == ["JsonChunk(json=1)", "TextChunk(text='a')"]
    assert await run(Typed(), [{"number": 7}]) == [7]
    assert await refusal(Typed()) == f"typed {NEEDS_INPUT}"


async def test_class_based_tool_gets_the_type_of_its_annotation() -> None:
    class Upload(Tool):
        name = "upload"
        input_schema: dict[str, Any] = {}  # noqa: RUF012

        async def execute(self, context: ToolContext, /, attachment: FileChunk) -> Any:
            return [attachment.name, (await attachment.read()).decode()]

    class Rows(Tool):
        name = "rows"
        input_schema: dict[str, Any] = {}  # noqa: RUF012

        async def execute(self, context: ToolContext, /, attachment: InputStream[Row]) -> Any:
            return [row.number async for row in attachment]

    class Late(Tool):
        name = "late"
        input_schema: dict[str, Any] = {}  # noqa: RUF012

        async def execute(self, context: ToolContext, /, attachment: LateStream[Row]) -> Any: ...

    assert await run(Upload(), [FileChunk(b"abc", "a.txt")]) == ["a.txt", "abc"]
    assert await refusal(Upload()) == f"upload {NEEDS_ATTACHMENT}"
    assert "not a file" in await refusal(Upload(), ["text"])
    assert await run(Rows(), [{"number": 7}]) == [7]
    with pytest.raises(TypeError, match="LateStream"):
        Toolkit("t", [Late()])


async def test_function_with_an_input_of_chunks_gets_them_unconverted() -> None:
    async def take(values: InputStream[Chunk]) -> Any:
        return [repr(value) async for value in values]

    assert await run(take, [1, "a"]) == ["JsonChunk(json=1)", "TextChunk(text='a')"]


async def test_name_imported_for_type_checkers_only_is_resolved() -> None:
    async def late(rows: LateStream[int]) -> None: ...

    with pytest.raises(TypeError, match="LateStream"):
        FunctionTool(late)
    code: dict[str, Any] = {}
    exec(
        "async def take(rows: 'InputStream[int]', context: 'ToolContext'): "
        "return [row async for row in rows]",
        code,
    )
    assert await run(code["take"], [1, 2]) == [1, 2]


async def two(a: InputStream[int], attachment: FileChunk) -> None: ...


def sync(attachment: FileChunk) -> None: ...


async def odd(rows: InputStream[AsyncIterator]) -> None: ...  # type: ignore[type-arg]  # the point


async def positional(rows: InputStream[int], /) -> None: ...


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (two, "'attachment' is a second parameter for the input"),
        (sync, "only an async function can take an upload as a file"),
        (positional, "'rows' is positional-only"),
    ],
)
def test_parameter_that_cannot_take_an_input_is_refused_when_the_tool_is_made(
    made: Callable[..., Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        FunctionTool(made)


def test_input_of_an_invalid_type_is_refused_when_the_tool_is_made() -> None:
    class Strange:
        pass

    async def take(rows: Any) -> None: ...

    take.__annotations__["rows"] = InputStream[Strange]
    with pytest.raises(TypeError, match="parameter 'rows': an InputStream of an invalid type"):
        FunctionTool(take)
