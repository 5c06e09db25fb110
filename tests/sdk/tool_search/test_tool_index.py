"""The index of tools: what is found, in which order, and that no text is syntax."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolbus import Unavailable
from toolbus.tool_search import tool_index
from toolbus.tool_search.tool_index import IndexedTool, ToolIndex

LONG = "a" * 60
KITS: dict[str, tuple[str, Sequence[IndexedTool]]] = {
    "weather": (
        "Forecasts for any place.",
        [
            IndexedTool("forecast", description="The weather of the next days, as wind and rain."),
            IndexedTool("now", "Conditions", "What a station measures.", ("meteorology",)),
        ],
    ),
    "mail": (
        "A mailbox.",
        [
            IndexedTool("send_message", description="Send an e-mail about anything, say weather."),
            IndexedTool("listMessages", description="List what has come."),
        ],
    ),
    "city-guide": (
        "Sights.",
        [
            IndexedTool("lookup", description="Find a sight; é, Straße, 東京タワー, ป้าย, 🌦."),
            IndexedTool(LONG, description="A long name."),
        ],
    ),
}


MADE: list[ToolIndex] = []


@pytest.fixture(scope="module", autouse=True)
def _close_indexes() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().close()


def new_index() -> ToolIndex:
    """Make an index that is closed at the end: Python 3.13 warns of a database that is not."""
    MADE.append(ToolIndex())
    return MADE[-1]


def filled() -> ToolIndex:
    index = new_index()
    for name, (description, tools) in KITS.items():
        index.put(name, "", description, tools)
    return index


@pytest.fixture(scope="module")
def index() -> ToolIndex:
    return filled()


def names_of(index: ToolIndex, query: str, limit: int = 10) -> list[str]:
    return [".".join(names) for names in index.search(query, limit).tools]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("weather.now", "weather.now"),
        ("weather__now", "weather.now"),
        ("  `Weather.Now()` ", "weather.now"),
        ("functions.weather__now", "weather.now"),
        ("now", "weather.now"),
        ("weather", "weather.forecast"),  # the toolkit, before a tool that tells of it
        ("city-guide", f"city-guide.{LONG}"),
        (f"city-guide.{LONG}", f"city-guide.{LONG}"),
        (f"city-guide__{LONG}"[:50], f"city-guide.{LONG}"),
        ("message", "mail.listMessages"),  # of snake_case and camelCase
        ("list messages", "mail.listMessages"),
        ("mess", "mail.send_message"),
        ("METEOROLOGY", "weather.now"),
        ("conditions", "weather.now"),
        ("rain or a wind", "weather.forecast"),
        ("mailbox", "mail.send_message"),
        ("send rain to nobody", "mail.send_message"),  # some of the words
        ("e strasse", "city-guide.lookup"),
        ("タワー", "city-guide.lookup"),
        ("京タ", "city-guide.lookup"),
        ("ป้าย", "city-guide.lookup"),
        ("🌦", "city-guide.lookup"),
        ("", f"city-guide.{LONG}"),
    ],
)
def test_query_finds(index: ToolIndex, query: str, first: str) -> None:
    is_of_several = query in ("city-guide", "mess", "message", "mailbox", "")
    assert first in names_of(index, query)[: 2 if is_of_several else 1]


def test_names_come_before_descriptions(index: ToolIndex) -> None:
    assert names_of(index, "weather") == ["weather.forecast", "weather.now", "mail.send_message"]


def test_words_of_grammar_do_not_decide() -> None:
    index = new_index()
    index.put("notes", "", "", [IndexedTool("add", description="Add a note to the list.")])
    refunds = [IndexedTool(f"refund{number}", description="Money back.") for number in range(20)]
    index.put("shop", "", "", refunds)
    assert names_of(index, "give a customer the money", 3)[0] == "shop.refund0"
    assert names_of(index, "the") == ["notes.add"]  # alone it is what is asked for


@pytest.mark.parametrize("query", ["zebra", "...", "-- ;", '"', "*", "NEAR", "NOT OR", "zebra:x"])
def test_what_is_nowhere_finds_nothing_and_marks_alone_list(index: ToolIndex, query: str) -> None:
    has_words = any(each.isalnum() for each in query)
    assert len(names_of(index, query)) == (0 if has_words else 6)


SYNTAX = ['"', "'", "(", ")", "*", "^", "{", "}", ":", "-", "+", "NEAR(a b, 3)", " AND ", " OR "]
SYNTAX += [" NOT ", "\0", "name:", ";", "--", "%", "_", "\\", "\ud800", "\U0010ffff", "ǅ", "İ"]


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=40),
        st.lists(st.sampled_from([*SYNTAX, "weather", "now", "東", "a"]), max_size=12).map("".join),
    ),
    st.integers(1, 5),
)
def test_any_text_is_a_query(index: ToolIndex, query: str, limit: int) -> None:
    found = index.search(query, limit)
    assert len(found.tools) == len(set(found.tools)) <= limit
    assert 0 <= found.more <= 6 - len(found.tools)
    assert len(index.near(query, limit)) <= limit


def test_long_query_is_read_so_far(index: ToolIndex) -> None:
    assert names_of(index, "weather.now " + "x" * 2**20) == names_of(index, "weather.now x")


def test_more_tells_how_many_are_not_returned() -> None:
    index = new_index()
    for kit in ("one", "two"):
        tools = [IndexedTool(f"get_{number}", description="A thing.") for number in range(20)]
        index.put(kit, "", "", tools)
    assert index.search("thing", 3).more == 37
    assert index.search("one", 30).more == 0
    assert index.search("", 3).more == 37
    for query in ("thing", "", "get"):
        hidden = index.search(query, 3, hidden={"one", "absent"})
        assert {toolkit for toolkit, _ in hidden.tools} == {"two"}
        assert hidden.more == 17


def test_ranking_stays_where_very_many_match() -> None:
    index = new_index()
    for kit in range(400):
        tools = [IndexedTool(f"get{at}", description="Get the data of a user.") for at in range(10)]
        index.put(f"kit{kit}", "", "", tools)
    index.put("rare", "", "", [IndexedTool("x", description="Get the data of a zebra.")])
    found = index.search("get the data of the zebra", 5)
    assert found.tools[0] == ("rare", "x")
    assert index.search("get data user", 5).more == 3_995


def test_toolkit_is_replaced_and_removed() -> None:
    index = filled()
    index.put("mail", "", "", [IndexedTool("fetch", description="Fetch parcels.")])
    assert names_of(index, "message") == []
    assert names_of(index, "parcels") == ["mail.fetch"]
    index.remove("mail")
    index.remove("mail")
    assert names_of(index, "mail.fetch parcels") == []
    index.put("mail", "", "", [])
    assert len(names_of(index, "")) == 4


def test_without_fts5_names_are_found_and_words_are_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tool_index, "_TABLE", "CREATE VIRTUAL TABLE tools USING fts99(name)")
    index = filled()
    assert "no such module: fts99" in caplog.text
    assert names_of(index, "mail.send_message") == ["mail.send_message"]
    assert names_of(index, "mail") == ["mail.send_message", "mail.listMessages"]
    assert len(names_of(index, "")) == 6
    with pytest.raises(Unavailable, match="no FTS5"):
        index.search("parcels", 5)
    assert index.near("mail", 3) == []
    index.remove("mail")
    assert len(names_of(index, "")) == 4


def test_ascii_words_of_a_query_are_no_syntax_of_fts5() -> None:
    assert set("".join(tool_index._clauses(string.printable))) <= {
        *string.ascii_lowercase,
        *string.digits,
        *'": *',
    }
