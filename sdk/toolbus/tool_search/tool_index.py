"""An index of tools in memory: names and words of descriptions, in SQLite's FTS5.

Names that are asked for exactly are looked up; all else is ranked by bm25. The time of a search is
bounded whatever is asked: at most `_MAX_RANKED` tools are ranked at a time.

What is written and what is asked for is cut into words alike. They are ASCII, so that SQLite's
tokenizer, which knows the Unicode of its own release, has nothing to decide, and no text is syntax.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import Unavailable
from toolbus.turns.turn_tools import ProviderNames, without_namespace

__all__ = ["Found", "IndexedTool", "ToolIndex", "as_name", "full_names"]

_logger = bounded_logger(__name__)

_MAX_WORD_CHARS = 48
"""A longer word is cut: nobody types the rest of it."""

# Scripts that write no spaces between words: each character is a word, and a run of them a phrase.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_SYMBOLS = "\u2600-\u27bf\U0001f000-\U0001faff"
_RUN = re.compile(f"[{_UNSPACED}]+|[{_SYMBOLS}]|[^\\W_{_UNSPACED}{_SYMBOLS}]+")
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]")
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

_TABLE = """
CREATE VIRTUAL TABLE tools USING fts5(name, title, tags, description, about, tokenize='ascii');
"""
_INSERT = "INSERT INTO tools(rowid, name, title, tags, description, about) VALUES (?,?,?,?,?,?)"
_UNRANKED = "SELECT rowid FROM tools WHERE tools MATCH ?"
# A word in a name says most of what a tool does. One in the description of its toolkit says least:
# all tools of the toolkit have it.
_RANKED = f"{_UNRANKED} ORDER BY bm25(tools, 10.0, 5.0, 5.0, 1.0, 0.5)"
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM tools WHERE tools MATCH ? LIMIT ?)"
_COUNT_WITHIN = "SELECT count(*) FROM tools WHERE tools MATCH ? AND rowid BETWEEN ? AND ?"
_MAX_RANKED = 3_000
"""Of a query that is ranked, its words times the tools that have all of them: 2 us for each."""
_MAX_RANKED_ANY = 1_200
"""The same for tools that have some of the words: the rarest words decide."""
# What is read of a query: each of its words is searched for by itself, while other queries wait.
_MAX_QUERY_CHARS = 1_000
_MAX_QUERY_WORDS = 8
_MAX_TEXT_CHARS = 2_000
"""Of a description, of titles and of tags that are indexed."""
_MAX_ABOUT_CHARS = 300
"""Of the description of its toolkit, which each of its tools has in the index."""
_SHORT_WORD_CHARS = 2
"""A word as short as this begins very many others, which are costly to go through."""
_GRAMMAR = frozenset(
    "a an and are be can do for i is it me my of or please that the this to which with you".split()
)
"""Words of a question that say nothing about a tool: few descriptions of tools have them, so that
they would look rare. Words that tools differ by, such as `on` and `off`, are none of them."""
_QUOTES = "`'\"“”"


class IndexedTool(NamedTuple):
    """What is indexed of a tool."""

    tool: str
    """Its name in its toolkit."""
    title: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()


class Found(NamedTuple):
    """What a search has found."""

    tools: list[tuple[str, str]]
    """Toolkit and tool of each, the best first."""
    more: int
    """How many further ones there are."""


class ToolIndex:
    """The tools of any number of toolkits; its methods may be called on any thread.

    Without FTS5 in the SQLite of this Python there is a warning in the log; names are still found,
    and a search for anything else raises `Unavailable`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[int, tuple[str, str]] = {}
        self._of_toolkit: dict[str, range] = {}
        self._named: dict[str, dict[int, None]] = {}
        self._last = 0
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._has_words = True
        try:
            self._database.executescript(_TABLE)
        except sqlite3.OperationalError as error:
            self._has_words = False
            _logger.warning("tools are found by their names alone: %s", error)

    def close(self) -> None:
        """Free the memory."""
        with self._lock:
            self._database.close()
            self._has_words = False
            self._rows.clear()
            self._of_toolkit.clear()
            self._named.clear()

    def put(self, toolkit: str, title: str, description: str, tools: Sequence[IndexedTool]) -> None:
        """Index the tools of a toolkit, in place of those that it had."""
        about = _text(description[:_MAX_ABOUT_CHARS])
        names = " ".join(name_words(toolkit))
        rows = []
        for tool in tools:
            rows.append(
                (
                    f"{names} {' '.join(name_words(tool.tool))}",
                    _text(f"{tool.title} {title}"[:_MAX_TEXT_CHARS]),
                    _text(" ".join(tool.tags)[:_MAX_TEXT_CHARS]),
                    _text(tool.description[:_MAX_TEXT_CHARS]),
                    about,
                )
            )
        with self._lock:
            self._remove(toolkit)
            if not rows:
                return
            first = self._last + 1
            self._last += len(rows)
            self._of_toolkit[toolkit] = range(first, self._last + 1)
            for row, tool in enumerate(tools, first):
                self._rows[row] = (toolkit, tool.tool)
                for name in _names(toolkit, tool.tool):
                    self._named.setdefault(name, {})[row] = None
            if self._has_words:
                with self._database:  # one transaction, which takes a tenth of the time of many
                    self._database.execute("BEGIN")
                    self._database.executemany(
                        _INSERT, ((row, *texts) for row, texts in enumerate(rows, first))
                    )

    def remove(self, toolkit: str) -> None:
        """Remove the tools of a toolkit, if there are any."""
        with self._lock:
            self._remove(toolkit)

    def _remove(self, toolkit: str) -> None:
        rows = self._of_toolkit.pop(toolkit, range(0))
        for row in rows:
            for name in _names(*self._rows.pop(row)):
                named = self._named[name]
                del named[row]
                if not named:
                    del self._named[name]
        if rows and self._has_words:
            self._database.execute(
                "DELETE FROM tools WHERE rowid BETWEEN ? AND ?", (rows[0], rows[-1])
            )

    def search(self, query: str, limit: int, hidden: Collection[str] = ()) -> Found:
        """Find tools by a text.

        One that is the name of a tool or of a toolkit comes first. Then come those with all words
        in their names, titles and tags; then those with all words in their descriptions too; and,
        if there are fewer than `limit`, those with some of the words. Words may be beginnings of
        words. A query without a character that can be looked for, such as an empty one, lists all.
        Tools of hidden toolkits are left out.

        Raises `Unavailable` without FTS5, unless the query is a name or lists all.
        """
        asked = query[:_MAX_QUERY_CHARS]
        clauses = _clauses(asked)
        with self._lock:
            if not clauses:
                return self._listed(limit, hidden)
            matching = _Matching(self._database, self._rows, limit)
            matching.hidden = [self._of_toolkit[name] for name in {*hidden} & {*self._of_toolkit}]
            named = self._named.get(as_name(asked), {})
            matching.add(named)
            if self._has_words:
                total = matching.add_ranked(clauses)
            elif named:
                total = len(named)
            else:
                text = "tools cannot be searched by words here: SQLite of this Python has no FTS5"
                raise Unavailable(f"{text}; name a tool or a toolkit", retryable=False)
            return Found([self._rows[row] for row in matching.found], total - len(matching.found))

    def near(self, name: str, limit: int) -> list[tuple[str, str]]:
        """Return the tools whose names have words of a name; none without FTS5."""
        with self._lock:
            if not self._has_words:
                return []
            clauses = [f"name : ({clause})" for clause in _clauses(name[:_MAX_QUERY_CHARS])]
            matching = _Matching(self._database, self._rows, limit)
            matching.add_any(clauses)
            return [self._rows[row] for row in matching.found]

    def _listed(self, limit: int, hidden: Collection[str]) -> Found:
        names: list[tuple[str, str]] = []
        toolkits = sorted(self._of_toolkit.keys() - {*hidden})
        for toolkit in toolkits:
            if len(names) >= limit:
                break
            names += (self._rows[row] for row in self._of_toolkit[toolkit])
        total = sum(len(self._of_toolkit[toolkit]) for toolkit in toolkits)
        return Found(names[:limit], max(0, total - limit))


class _Matching:
    """The tools that one search finds; `rows` has toolkit and tool of each row of the index."""

    def __init__(
        self, database: sqlite3.Connection, rows: Mapping[int, tuple[str, str]], limit: int
    ) -> None:
        self._database = database
        self._rows = rows
        self._limit = limit
        self.found: dict[int, None] = {}
        """The rows that are found, the best first."""
        self.hidden: list[range] = []
        """The rows of toolkits that are left out."""

    @property
    def is_full(self) -> bool:
        """Whether as many are found as are wanted."""
        return len(self.found) >= self._limit

    def add(self, rows: Iterable[int]) -> None:
        """Add rows, until there are as many as are wanted."""
        for row in rows:
            if self.is_full:
                break
            if not any(row in hidden for hidden in self.hidden):
                self.found[row] = None

    def add_ranked(self, clauses: list[str]) -> int:
        """Add the tools that match; return how many there are."""
        everywhere = " AND ".join(clauses)
        matching = self._count(everywhere, len(self._rows))
        # Where so many fit a query equally, their order says little, and it takes long.
        of_names = f"{{name title tags}} : ({everywhere})"
        most = _MAX_RANKED // len(clauses)
        for query in (of_names, everywhere):
            if matching and not self.is_full:
                is_ranked = matching <= most or self._count(query, most + 1) <= most
                self._add_of(query, is_ranked=is_ranked)
        total = self._visible(everywhere, matching)
        if not self.is_full and len(clauses) > 1:
            total = max(total, self.add_any(clauses))
        return total

    def add_any(self, clauses: list[str]) -> int:
        """Add the tools that match some of the clauses; return how many there are.

        The rarest words count: those that very many tools have say little about any of them.
        """
        counted = [(self._count(clause, _MAX_RANKED_ANY), clause) for clause in clauses]
        chosen: list[str] = []
        left = _MAX_RANKED_ANY
        for count, clause in sorted(counted, key=itemgetter(0)):
            left -= count
            if left < 0 and chosen:
                break
            if count:
                chosen.append(clause)
        if not chosen:
            return 0
        query = " OR ".join(chosen)
        self._add_of(query, is_ranked=left >= 0 or len(chosen) > 1)
        return self._visible(query, self._count(query, len(self._rows)))

    def _add_of(self, query: str, *, is_ranked: bool) -> None:
        statement = _RANKED if is_ranked else _UNRANKED
        self.add(row for (row,) in self._database.execute(statement, (query,)))

    def _count(self, query: str, most: int) -> int:
        count: int = self._database.execute(_COUNT, (query, most)).fetchone()[0]
        return count

    def _visible(self, query: str, count: int) -> int:
        """Return how many of the tools that match are not hidden."""
        for rows in self.hidden if count else ():
            counted = self._database.execute(_COUNT_WITHIN, (query, rows[0], rows[-1]))
            count -= counted.fetchone()[0]
        return count


def words_of(text: str) -> Iterator[tuple[str, ...]]:
    """Cut a text into words: at `_`, `-`, `.`, any other mark, and where camelCase has a hump.

    Case and accents do not count. A run of a script without spaces is one tuple of several words,
    a phrase; each other word is a tuple of one.
    """
    if text.isascii():
        for word in _RUN.findall(_CAMEL_CASE.sub(" ", text)):
            yield (word[:_MAX_WORD_CHARS].lower(),)
        return
    folded = unicodedata.normalize("NFKD", _CAMEL_CASE.sub(" ", text))
    plain = "".join(char for char in folded if not unicodedata.combining(char)).casefold()
    for run in _RUN.findall(plain):
        if _UNSPACED_RUN.match(run):
            yield tuple(_ascii(character) for character in run)
        else:
            yield (_ascii(run),)


def name_words(name: str) -> Iterator[str]:
    """Return the words of a name, `toolkit` or `tool`, and all of them as one."""
    words = [word for phrase in words_of(name) for word in phrase]
    yield from words
    if len(words) > 1:
        yield "".join(words)[:_MAX_WORD_CHARS]


def _ascii(word: str) -> str:
    """Return a word with each other character as its number, of one width: prefixes stay so."""
    return "".join(char if char.isascii() else f"{ord(char):06x}" for char in word)[
        :_MAX_WORD_CHARS
    ]


def _text(text: str) -> str:
    return " ".join(word for phrase in words_of(text) for word in phrase)


def _clauses(query: str) -> list[str]:
    """Return what the words of a query ask for, each once, as FTS5 writes it."""
    asked = dict.fromkeys(words_of(query))
    telling = [words for words in asked if words[0] not in _GRAMMAR]
    phrases = list(islice(telling or asked, _MAX_QUERY_WORDS))
    clauses = []
    for words in phrases:
        # The words are of `a-z 0-9`: nothing in them could be syntax.
        clause = f'"{" ".join(words)}"'
        if len(words) > 1 or len(words[0]) > _SHORT_WORD_CHARS:
            clause += "*"
        elif len(phrases) == 1:
            clause = f"name : {clause}*"
        clauses.append(clause)
    return clauses


def full_names(toolkit: str, tool: str) -> tuple[str, str]:
    """Return the names of a tool that name no other one: `toolkit.tool`, and that for providers."""
    name = f"{toolkit}.{tool}"
    return name, ProviderNames([name]).name_of(name) or ""


def _names(toolkit: str, tool: str) -> Iterable[str]:
    """Return the texts that name a tool, in lower case."""
    names = (*full_names(toolkit, tool), toolkit, tool)
    return dict.fromkeys(name.lower() for name in names)


def as_name(query: str) -> str:
    """Return a text as a name in lower case, without what people and models put around it."""
    return without_namespace(query.strip().strip(_QUOTES).removesuffix("()")).lower()
