"""The toolkit `scratchpad`: pages of text that an agent keeps for itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import Field

from toolbus import AgentState, ToolContext, ToolFailed, tool
from toolbus.chunks.json_values import cut
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.notes.notes import (
    FilePath,
    NotesToolkit,
    Shape,
    as_value_error,
)

__all__ = ["PageSize", "Scratchpad"]

_MAX_PAGES = 50
"""A model reads the list of all of them."""
_MAX_CHARS = 10_000
"""Of a page, which a model reads and writes as a whole."""

_Name: TypeAlias = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class PageSize:
    """A page in the list of all."""

    name: str
    chars: int


class _Pages(Shape):
    pages: dict[str, str] = Field(default_factory=dict)

    def write(self, name: str, text: str) -> None:
        """Write a page, or remove it with an empty text. Raises `ToolFailed`."""
        if not text:
            self.pages.pop(name, None)
            return
        if len(text) > _MAX_CHARS:
            raise ToolFailed(
                f"the text has {len(text):,} characters, and a page has at most {_MAX_CHARS:,}:"
                " write less, or several pages"
            )
        if name not in self.pages and len(self.pages) >= _MAX_PAGES:
            raise ToolFailed(
                f"there are {_MAX_PAGES} pages, and no more are stored: remove one, with text=''"
            )
        self.pages[name] = text

    def read(self, name: str) -> str:
        """Return a page. Raises `ToolFailed` that names the pages."""
        if name not in self.pages:
            there = cut(", ".join(map(repr, self.pages))) or "none"
            raise ToolFailed(f"there is no page {cut(repr(name))}; the pages: {there}")
        return self.pages[name]

    def sizes(self) -> list[PageSize]:
        """Return the list of pages."""
        return [PageSize(name, len(text)) for name, text in self.pages.items()]

    def lines(self) -> list[str]:
        """Return the names of the pages."""
        return [
            f"- {one_line(page.name, SHOWN_CHARS)} ({page.chars:,} characters)"
            for page in self.sizes()
        ]


class Scratchpad(NotesToolkit[_Pages]):
    """Named pages of text that an agent keeps for itself: `read` and `write`.

    Args:
        name: The name of the toolkit.
        initial: The pages at first: texts by name.
        prompt: Whether `Turn.prompt` has the names of the pages.
        file: The SQLite file for calls over a room; `notes.db` in `TOOLBUS_HOME` by default.

    Raises `ValueError` for initial pages that could not be written.
    """

    def __init__(
        self,
        name: str = "scratchpad",
        *,
        initial: Mapping[str, str] | None = None,
        prompt: bool = False,
        file: FilePath = None,
    ) -> None:
        notes = _Pages()
        with as_value_error():
            for page, text in (initial or {}).items():
                notes.write(page, text)
        super().__init__(
            name,
            notes,
            [self._read, self._write],
            prompt=prompt,
            file=file,
            title="Scratchpad",
            description="Pages of text for what you will need later in this conversation.",
            rules=["Write down what you found out with effort, and what you must not forget."],
        )

    @staticmethod
    def of(state: AgentState, name: str = "scratchpad") -> dict[str, str]:
        """Return the pages in the state of an agent; see `Tasks.of`."""
        with as_value_error(f"state of {name}"):
            return _Pages.of(state.state.get(name, {})).pages

    @tool(name="read", read_only=True, idempotent=True)
    async def _read(self, context: ToolContext, name: _Name | None = None) -> str | list[PageSize]:
        """Return the text of a page; without a name the list of all pages.

        Args:
            context: The call.
            name: The name of the page.
        """

        def look(notes: _Pages) -> str | list[PageSize]:
            return notes.sizes() if name is None else notes.read(name)

        return await self.read_notes(context, look)

    @tool(name="write", idempotent=True)
    async def _write(self, context: ToolContext, name: _Name, text: str) -> None:
        """Write a page: the text replaces what it had; an empty text removes the page.

        Args:
            context: The call.
            name: The name of the page; there are at most 50.
            text: All of it, at most 10,000 characters.
        """
        await self.change_notes(context, lambda notes: notes.write(name, text))
