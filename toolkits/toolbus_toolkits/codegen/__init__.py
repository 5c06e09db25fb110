"""Files to begin with, for an agent: `write`, with the templates of `toolbus new`.

They are written as `files.write` writes: what is assessed, shown to a person and refused is that of
`files.text_tools`. The model then changes them by `files.edit`, with the tokens of the result.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from toolbus import Assessment, FunctionTool, ToolContext, ToolFailed, Toolkit
from toolbus.bounded_logging import bounded_logger
from toolbus.scaffolds import ScaffoldKind, scaffold
from toolbus_toolkits.files import Files, RootsConfig
from toolbus_toolkits.workspace import PATH_MAX

if TYPE_CHECKING:
    from toolbus import Middleware, Permissions, Records

__all__ = ["Codegen", "CodegenConfig", "CodegenResult", "NewFile", "codegen"]

_logger = bounded_logger(__name__)


class NewFile(TypedDict):
    """A file that was written."""

    path: str
    token: str
    """Its version, for `files.edit`."""
    text: str


class CodegenResult(TypedDict):
    """What `write` has written."""

    files: list[NewFile]


class CodegenConfig(RootsConfig, frozen=True, extra="forbid"):
    """Which folders the toolkit `codegen` writes into.

    Raises `ValidationError` if a folder does not exist.
    """


class Codegen(Toolkit):
    """Files to begin with: a toolkit, a tool, an agent, a skill or a workflow, with a test.

        files = Files(".")
        Agent(room, model, name="helper", always=[files, Codegen(files)])

    Args:
        files: The toolkit that they are written through.
        name: The name of the toolkit.
        middlewares: As those of a `Toolkit`.
        records: As those of a `Toolkit`.
        policy: As that of a `Toolkit`. Without one, all its callers may make files.

    Raises `ValueError` for files that are only read.
    """

    def __init__(
        self,
        files: Files,
        *,
        name: str = "codegen",
        middlewares: Iterable[Middleware] = (),
        records: Records | None = None,
        policy: Permissions | None = None,
    ) -> None:
        if not files.changes_files:
            raise ValueError("these files are read only: nothing can be written through them")
        self._files = files.text_tools
        tool = FunctionTool(self._write, name="write", affinity="caller", assess=self._assess)
        tool.marks_entry = True  # by `make`: before, nothing was written
        super().__init__(
            name,
            [tool],
            title="Code generation",
            description="Writes a toolkit, tool, agent, skill or workflow to begin with.",
            rules=[
                "What `write` writes runs, and passes its test. Replace its example by"
                " `files.edit`, with the token of each file, and the test with it."
            ],
            middlewares=middlewares,
            records=records,
            policy=policy,
        )
        self.workdirs = files.workdirs

    @asynccontextmanager
    async def hosting(self, room: Any) -> AsyncIterator[None]:
        """Warn where nothing limits what callers write."""
        if not self.policies:
            _logger.warning(
                "toolkit %s has no policy: whoever may call it makes files anywhere below its"
                " roots; `toolbus host --policy FILE` limits that",
                self.name,
            )
        yield

    async def _write(
        self,
        context: ToolContext,
        target: ScaffoldKind,
        name: Annotated[str, Field(max_length=64)],
        path: Annotated[str, Field(min_length=1, max_length=PATH_MAX)] = ".",
    ) -> CodegenResult:
        """Write the files of a toolkit, tool, agent, skill or workflow to begin with.

        It is an example that works, for you to change by `files.edit`. All but a skill have a test.
        No file is replaced: if one of them is there, nothing is written.

        Args:
            context: The call.
            target: What is written. A toolkit has several tools; a workflow is a program that calls
                tools.
            name: Its name: a letter, then a-z, 0-9, _ and -.
            path: The folder, from the root, or absolute. Folders that are missing are made.
        """
        try:
            texts = _texts(target, name, path)
        except ValueError as error:
            refused = ToolFailed(str(error), executed="no", details={"reason": "bad_name"})
            raise context.refuse(refused) from None
        tokens = await self._files.make(context, texts)
        files = (NewFile(path=file, token=tokens[file], text=text) for file, text in texts.items())
        return CodegenResult(files=list(files))

    def _assess(
        self, context: ToolContext, target: ScaffoldKind, name: str, path: str = "."
    ) -> Assessment:
        try:
            texts = _texts(target, name, path)
        except ValueError as error:
            return Assessment("pass", read_only=True, message=f"the call would fail: {error}")
        return self._files.assess_make(context, texts)


def _texts(target: ScaffoldKind, name: str, folder: str) -> dict[str, str]:
    # Not normalized: `link/..` is the folder above that of the link.
    start = "" if folder == "." else os.path.join(folder, "")
    return {f"{start}{file}": text for file, text in scaffold(target, name).items()}


def codegen(config: CodegenConfig) -> Toolkit:
    """Files to begin with: a toolkit, a tool, an agent, a skill or a workflow, with a test.

    It is a factory: `toolbus host codegen --root PATH` hosts it, and `builder_of(codegen,
    root=...)` offers it to agents.

    Args:
        config: Which folders it writes into.
    """
    return Codegen(Files(**dict(config)))
