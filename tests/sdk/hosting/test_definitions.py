"""Which definition of a replaced toolkit the calls of a connection mean."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from toolbus import Toolkit
from toolbus.hosting.hosted_toolkit import Definitions, HostedToolkit

FIRST, SECOND = "first connection", "second connection"


class Stage:
    """A toolkit `t` with an old and a new definition, and one or two connections."""

    def __init__(self) -> None:
        self.definitions = Definitions()
        self.old = self.definitions.add(Toolkit("t"), public=True)
        self.new = HostedToolkit(Toolkit("t"), public=True)
        self.numbers = [self.definitions.add_connection(FIRST)]

    def reconnect(self) -> None:
        self.numbers.append(self.definitions.add_connection(SECOND))

    def meant(self) -> list[str]:
        """Return what a call on each connection means: `old`, `new`, or nothing in doubt."""
        found = self.definitions.get(("t", True))
        assert found is not None
        name = "old" if found is self.old else "new"
        return [name if found.is_for_all or found.serves(number) else "" for number in self.numbers]


def accept(stage: Stage, connection: str) -> bool:
    return stage.definitions.accept(stage.old, stage.new, connection)


@pytest.mark.parametrize(
    ("steps", "meant"),
    [
        ("ask", ["old"]),
        ("ask first", ["new"]),
        ("ask reconnect", ["old", ""]),
        ("ask reconnect confirm", ["old", "old"]),
        ("ask reconnect confirm ask second", ["", "new"]),
        ("ask reconnect first", ["", ""]),
        ("ask reconnect first confirm", ["", "old"]),
        ("ask doubt", [""]),
        ("ask doubt reconnect confirm", ["old", "old"]),
        ("ask first reconnect", ["new", "new"]),
        ("reconnect ask", ["old", "old"]),
    ],
)
def test_calls_are_refused_where_their_definition_is_in_doubt(steps: str, meant: list[str]) -> None:
    stage = Stage()
    actions: dict[str, Callable[[], object]] = {
        "ask": lambda: stage.definitions.request(stage.old),
        "doubt": lambda: stage.definitions.doubt(stage.old),
        "confirm": lambda: stage.definitions.confirm(stage.old, SECOND),
        "reconnect": stage.reconnect,
        "first": lambda: accept(stage, FIRST),
        "second": lambda: accept(stage, SECOND),
    }
    for step in steps.split():
        actions[step]()
    assert stage.meant() == meant
