import pytest
from toolbus import InvalidArguments, ToolFailed
from toolbus_server.testing import ThreadedServer

from stock import toolkit

COUNT = f"{toolkit.name}.count"
ADD = f"{toolkit.name}.add"


def test_what_is_added_is_counted(toolbus_room: ThreadedServer) -> None:
    toolbus_room.host(toolkit)
    room = toolbus_room.connect("ann")
    before = room.call(COUNT, item="pen")
    assert room.call(ADD, item="pen", number=2) == before + 2
    assert room.call(COUNT, item="pen") == before + 2


def test_an_unknown_item_fails(toolbus_room: ThreadedServer) -> None:
    toolbus_room.host(toolkit)
    room = toolbus_room.connect("ann")
    with pytest.raises(ToolFailed, match="there is no cup, only pen, hat"):
        room.call(COUNT, item="cup")
    with pytest.raises(InvalidArguments, match="/number"):
        room.call(ADD, item="pen", number="many")
