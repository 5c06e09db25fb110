"""Flags that several commands share: a frozen dataclass whose fields are flags.

    @dataclass(frozen=True, kw_only=True)
    class Choices:
        steps: Annotated[int, typer.Option(help="...")] = 20

    @takes(Choices)
    def command(choices: Choices, other: ...) -> None:

The command has the flag `--steps`, and gets what was chosen.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

__all__ = ["takes"]


def takes(kind: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of a dataclass, in place of its parameter of that type.

    Args:
        kind: The class. All its fields have defaults; a `typer.Context` is that of the command.
    """
    hints = get_type_hints(kind, include_extras=True)
    flags = [
        inspect.Parameter(
            flag.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=flag.default,
            annotation=hints[flag.name],
        )
        for flag in fields(kind)
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        taken = ""
        for parameter in signature.parameters.values():
            if parameter.annotation is kind:
                taken = parameter.name
                parameters += flags
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def with_flags(*first: Any, **given: Any) -> None:
            chosen = kind(**{flag.name: given.pop(flag.name) for flag in flags})
            command(*first, **given, **{taken: chosen})

        with_flags.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect
        with_flags.__annotations__ = {flag.name: flag.annotation for flag in parameters}
        return with_flags

    return decorate
