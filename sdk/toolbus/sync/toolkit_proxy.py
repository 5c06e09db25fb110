"""A hosted toolkit, with its tools as methods that wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Self

from toolbus.room.toolkit_proxy import ToolkitInfo
from toolbus.room.toolkit_proxy import ToolkitProxy as AsyncToolkitProxy
from toolbus.sync.results import Chunk, Run, Stream, with_blocking_files
from toolbus.wire import ToolkitManifest, ToolManifest

__all__ = ["ToolkitProxy"]


class ToolkitProxy:
    """A hosted toolkit: `weather.forecast(city="Oslo")` calls its tool `forecast` and waits.

    A streaming tool is read: `with logs.tail(path="a.log") as chunks:`.
    """

    def __init__(self, run: Run, proxy: AsyncToolkitProxy) -> None:
        """Made by the library.

        Args:
            run: Runs the calls.
            proxy: The proxy whose methods are awaited.
        """
        self._run = run
        self._proxy = proxy

    @property
    def info(self) -> ToolkitInfo:
        """Its summary, as of when the proxy was made."""
        return self._proxy.info

    @property
    def manifest(self) -> ToolkitManifest:
        """Its description, rules, and tools with their schemas."""
        return self._proxy.manifest

    def with_options(self, **options: Any) -> Self:
        """Return a proxy with other options of each call, as `toolbus.ToolkitProxy` does."""
        return type(self)(self._run, self._proxy.with_options(**options))

    def call(self, tool: str, arguments: Any = None, /, **named: Any) -> Any:
        """Call a tool by its own name and return the plain value, or it as the option `returns`.

        Raises:
            RoomException: Why there is no value; `executed` says whether the tool ran.
        """
        return self._waited(self._proxy.call, tool, arguments, **named)

    def stream(self, tool: str, arguments: Any = None, /, **named: Any) -> Stream[Chunk]:
        """Call a tool by its own name and read its chunks as they arrive."""
        return self._read(self._proxy.stream, tool, arguments, **named)

    def tool(self, name: str) -> ToolManifest:
        """Return the description of one tool. Raises NotFound."""
        return self._proxy.tool(name)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") or name in {"_run", "_proxy"}:  # while it is copied
            raise AttributeError(name)
        method = getattr(self._proxy, name)
        way = self._read if self._proxy.tool(name).streaming else self._waited

        @wraps(method)  # a function, of which help() shows the signature; of a partial it does not
        def waiting(*positional: Any, **named: Any) -> Any:
            return way(method, *positional, **named)

        return waiting

    def _waited(self, method: Callable[..., Any], /, *positional: Any, **named: Any) -> Any:
        return with_blocking_files(self._run, self._run(method, *positional, **named))

    def _read(self, method: Callable[..., Any], /, *positional: Any, **named: Any) -> Stream[Chunk]:
        source = method(*positional, **named)
        return Stream(self._run, source, partial(with_blocking_files, self._run))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._proxy)})

    def __repr__(self) -> str:
        return repr(self._proxy)
