"""Reads a whole command line: the structure with `tree-sitter-bash`, the words with `words`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Query, QueryCursor

from toolbus_toolkits.shell.reading.heredocs import (
    HereDocument,
    find_here_documents,
    without_here_documents,
)
from toolbus_toolkits.shell.reading.parts import (
    Assignment,
    Reading,
    Redirection,
    SimpleCommand,
    UnreadableError,
    Word,
)
from toolbus_toolkits.shell.reading.words import WordReader

__all__ = ["read_line"]

MAX_LINE_LENGTH = 65_536
MAX_COMMANDS = 256
# Each level takes some ten frames of Python, of 1,000.
MAX_DEPTH = 20

_LETTERS_ABOVE_ASCII = re.compile(r"[^\x00-\x7f]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
_SUBSCRIPT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\[")
_REDIRECTION = re.compile(
    r"([0-9]*)(<<<|<<-?|<>|<&|>&|>>|>\||<(?!\()|>(?!\())|(&>>?)|(\{[A-Za-z_][A-Za-z0-9_]*\}[<>])"
)
_DESCRIPTOR = re.compile(r"[0-9]+-?|-")
# bash joins lines before it looks for operators and expansions.
_JOINED_OPERATOR = re.compile(r"[|&;<>(]\\\n[\\|&;<>(]|\$\w*\\\n|\{\w*\\\n", re.ASCII)

# Words that begin or end a compound command where a command may begin.
_RESERVED = frozenset(
    "if then else elif fi case esac for select while until do done in function time { } ! [[ ]]"
    " coproc".split()
)
_OPERATORS = frozenset(["&&", "||", ";", "&", "|", "|&", "(", ")"])
_KEYWORDS = frozenset(
    "if then else elif fi case esac for select while until do done in { } !".split()
)
_SIMPLE = frozenset(
    "command variable_assignment variable_assignments declaration_command unset_command".split()
)
_REDIRECTS = frozenset(["file_redirect", "herestring_redirect"])
_SEQUENCES = frozenset(
    "list pipeline negated_command compound_statement subshell if_statement elif_clause"
    " else_clause while_statement do_group".split()
)


@cache
def _grammar() -> tuple[Parser, Query]:
    language = Language(tree_sitter_bash.language())
    query = Query(language, "[(command_substitution) (process_substitution)] @substitution")
    return Parser(language), query


class _LineReader:
    """Reads one text. `_index` is where it is; everything before is understood."""

    def __init__(self, text: str, environment: Mapping[str, str], depth: int = 0) -> None:
        self.commands: list[SimpleCommand] = []
        self.assigned_names: set[str] = set()
        self._text = text
        self._environment = environment
        self._depth = depth
        self._index = 0
        self._words = WordReader(
            text,
            environment,
            read_commands=self._read_substitution,
            read_backticks=self._read_backticks,
        )
        self.used_names = self._words.used_names
        self._here_documents = find_here_documents(text) if "<<" in text else {}
        # Here-documents whose operator is read, by where their body begins; and in which
        # substitution that was.
        self._pending: dict[int, tuple[HereDocument, int]] = {}
        self._substitution = -1
        # tree-sitter counts bytes: with one byte for each letter its numbers are indexes.
        source = without_here_documents(text, self._here_documents)
        parser, query = _grammar()
        self._root = parser.parse(_LETTERS_ABOVE_ASCII.sub("x", source).encode()).root_node
        self._substitutions: dict[int, Node] = {}
        if "$(" in source or "<(" in source or ">(" in source:
            captures = QueryCursor(query).captures(self._root)
            self._substitutions = {
                node.start_byte: node for node in captures.get("substitution", ())
            }

    def read(self) -> None:
        """Read all of it."""
        if self._root.has_error:
            raise UnreadableError("it is not understood as a command line of bash")
        self._read_sequence(self._root.children)
        self._skip_blanks()
        if self._index != len(self._text):
            raise self._disagreement()
        if self._here_documents:
            raise UnreadableError("a here-document is not understood")

    def _disagreement(self) -> UnreadableError:
        shown = self._text[self._index : self._index + 20]
        return UnreadableError(f"it is not understood from `{shown}` on")

    # The text between words.

    def _skip_blanks(self, *, newlines: bool = True) -> None:
        """Go over blanks, joined lines and comments; with `newlines`, to the next statement."""
        text = self._text
        index = self._index
        while index < len(text):
            mark = text[index]
            if mark in " \t":
                index += 1
            elif mark == "\\" and text.startswith("\n", index + 1):
                index += 2
            elif mark == "\n" and newlines:
                index = self._skip_bodies(index + 1)
            elif mark == "#" and (index == 0 or text[index - 1] in " \t\n|&;()<>"):
                end = text.find("\n", index)
                index = len(text) if end < 0 else end
            else:
                break
        self._index = index

    def _skip_bodies(self, index: int) -> int:
        """Go over the bodies of the here-documents that begin at an index."""
        while index in self._pending:
            document, substitution = self._pending.pop(index)
            if substitution != self._substitution:
                raise UnreadableError("a here-document begins in another substitution")
            index = document.body_end
        return index

    def _take(self, node: Node) -> None:
        """Read an operator or a reserved word."""
        kind = node.type
        if kind == "\n":
            return
        self._skip_blanks()
        end = node.end_byte
        text = self._text
        if node.start_byte != self._index or text[self._index : end] != kind:
            raise self._disagreement()
        following = text[end : end + 1]
        if kind in _OPERATORS:
            # A longer operator would be another one.
            is_whole = not (
                following in "&|;"
                and following
                and kind in "&|;"
                or kind in "(&"
                and following in "(>"
            )
            if kind == "(" and following == "(":
                is_whole = False
        elif kind in _KEYWORDS:
            is_whole = not following or following in " \t\n|&;()<>"
        else:
            is_whole = False
        if not is_whole:
            raise UnreadableError(f"`{text[self._index : end + 1]}` is not read")
        self._index = end

    # Statements.

    def _read_sequence(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.is_named:
                if node.type != "comment":
                    self._read_statement(node)
            else:
                self._take(node)

    def _read_statement(self, node: Node) -> None:
        kind = node.type
        self._skip_blanks()
        if node.start_byte != self._index:
            raise self._disagreement()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnreadableError("it is nested too deeply")
        if kind in _SIMPLE:
            self._read_simple_command()
        elif kind in _SEQUENCES:
            self._read_sequence(node.children)
        elif kind == "redirected_statement":
            self._read_redirected(node)
        elif kind == "test_command" and node.children[0].type == "[":
            self._read_simple_command()
        elif kind == "for_statement":
            self._read_for(node)
        elif kind == "case_statement":
            self._read_case(node)
        else:
            raise UnreadableError(f"a {kind.replace('_', ' ')} is not read")
        self._depth -= 1
        if self._index < node.end_byte:
            raise self._disagreement()
        if kind not in _SIMPLE:
            self._read_redirections()

    def _read_redirected(self, node: Node) -> None:
        body = node.children[0]
        if body.type in _REDIRECTS:
            self._read_simple_command()
        else:
            self._read_statement(body)

    def _read_for(self, node: Node) -> None:
        is_listed = False
        for child in node.children:
            if child.type == "do_group":
                self._read_statement(child)
            elif child.type == "variable_name":
                self._skip_blanks()
                name = self._text[self._index : child.end_byte]
                if child.start_byte != self._index or not _NAME.fullmatch(name):
                    raise self._disagreement()
                self.assigned_names.add(name)
                self._index = child.end_byte
            elif not child.is_named:
                self._take(child)
                if child.type == "in":
                    is_listed = True
                    self._read_words()
            elif not is_listed:
                raise self._disagreement()

    def _read_case(self, node: Node) -> None:
        for child in node.children:
            if child.type == "case_item":
                self._read_case_item(child)
            elif not child.is_named:
                self._take(child)
            elif child.type != "comment":
                self._read_word_at(child)

    def _read_case_item(self, node: Node) -> None:
        is_pattern = True
        for child in node.children:
            if child.type in {";;", ";&", ";;&"}:
                self._skip_blanks()
                if child.start_byte != self._index:
                    raise self._disagreement()
                self._index = child.end_byte
            elif child.type == "comment":
                continue
            elif not child.is_named:
                self._take(child)
                is_pattern = is_pattern and child.type != ")"
            elif is_pattern:
                self._read_word_at(child)
            else:
                self._read_statement(child)

    def _read_word_at(self, node: Node) -> None:
        """Read a word that begins where a node does; no word may be read in its middle."""
        if node.end_byte <= self._index:
            return
        self._skip_blanks()
        if node.start_byte != self._index:
            raise self._disagreement()
        _, self._index = self._words.read(self._index)
        if self._index < node.end_byte:
            raise self._disagreement()

    # Simple commands.

    def _read_words(self) -> list[Word]:
        words: list[Word] = []
        self._skip_blanks(newlines=False)
        while self._index < len(self._text) and self._text[self._index] not in "\n|&;()":
            word, self._index = self._words.read(self._index)
            words.append(word)
            self._skip_blanks(newlines=False)
        return words

    def _read_simple_command(self) -> None:
        text = self._text
        start = self._index
        number = len(self.commands)
        words: list[Word] = []
        assignments: list[Assignment] = []
        redirections: list[Redirection] = []
        end = start
        while self._index < len(text):
            redirection = self._read_redirection()
            if redirection is not None:
                redirections.append(redirection)
            elif text[self._index] in "\n|&;()":
                break
            else:
                match = None if words else _ASSIGNMENT.match(text, self._index)
                if match is not None:
                    if text.startswith("(", match.end()):
                        raise UnreadableError("an array is not read")
                    value, self._index = self._words.read(match.end(), is_assigned=True)
                    assignments.append(Assignment(match[1], value))
                    self.assigned_names.add(match[1])
                else:
                    if not words and _SUBSCRIPT.match(text, self._index):
                        raise UnreadableError("a subscript is not read")
                    word, self._index = self._words.read(self._index)
                    if not words and word.source in _RESERVED:
                        raise UnreadableError(f"`{word.source}` is not read here")
                    words.append(word)
            end = self._index
            self._skip_blanks(newlines=False)
        if words and words[0].value is None:
            raise UnreadableError("the name of a command is known only when the line runs")
        # The commands of its substitutions run before it, but it begins before them.
        command = SimpleCommand(
            tuple(words), tuple(assignments), tuple(redirections), text[start:end]
        )
        self._add(command, number)

    def _add(self, command: SimpleCommand, number: int) -> None:
        self.commands.insert(number, command)
        if len(self.commands) > MAX_COMMANDS:
            raise UnreadableError(f"it has more than {MAX_COMMANDS} commands")

    def _read_redirections(self) -> None:
        """Read the redirections behind a compound command, as a command of their own."""
        redirections: list[Redirection] = []
        self._skip_blanks(newlines=False)
        start = self._index
        end = start
        number = len(self.commands)
        while self._index < len(self._text):
            redirection = self._read_redirection()
            if redirection is None:
                break
            redirections.append(redirection)
            end = self._index
            self._skip_blanks(newlines=False)
        if redirections:
            source = self._text[start:end]
            self._add(SimpleCommand((), (), tuple(redirections), source), number)

    def _read_redirection(self) -> Redirection | None:
        match = _REDIRECTION.match(self._text, self._index)
        if match is None:
            return None
        if match[4]:
            raise UnreadableError("a redirection to a variable is not read")
        operator = match[2] or match[3]
        if operator in {"<<", "<<-"}:
            return self._read_here_document(match.end(1), operator)
        self._index = match.end()
        self._skip_blanks(newlines=False)
        word, self._index = self._words.read(self._index)
        if operator == "<<<":
            return Redirection(operator, None, word)
        if operator in {"<&", ">&"} and _DESCRIPTOR.fullmatch(word.source):
            return Redirection(operator, None)
        return Redirection(operator, word)

    def _read_here_document(self, start: int, operator: str) -> Redirection:
        document = self._here_documents.pop(start, None)
        if document is None:
            raise UnreadableError("a here-document is not understood")
        self._pending[document.body_start] = (document, self._substitution)
        self._index = document.end
        if not document.is_quoted and any(mark in document.body for mark in "$`\\"):
            raise UnreadableError("a here-document with expansions is not read")
        return Redirection(operator, None, Word(document.body, document.body))

    # Substitutions.

    def _read_substitution(self, start: int) -> int:
        node = self._substitutions.get(start)
        if node is None:
            raise UnreadableError(
                f"it is not understood from `{self._text[start : start + 20]}` on"
            )
        outer = (self._index, self._substitution)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnreadableError("it is nested too deeply")
        self._substitution = start
        self._index = start + 2
        self._read_sequence(node.children[1:-1])
        self._skip_blanks()
        end = self._index
        if node.end_byte != end + 1 or self._text[end : end + 1] != ")":
            raise self._disagreement()
        self._index, self._substitution = outer
        self._depth -= 1
        return end + 1

    def _read_backticks(self, text: str) -> None:
        inner = _LineReader(text, self._environment, self._depth + 1)
        inner.read()
        for command in inner.commands:
            self._add(command, len(self.commands))
        self.assigned_names |= inner.assigned_names
        self.used_names |= inner.used_names


def _fault_of_text(line: str) -> str:
    if len(line) > MAX_LINE_LENGTH:
        return f"it is longer than {MAX_LINE_LENGTH} characters"
    # Blanks other than the space, control characters, surrogates, letters without a width and
    # those that change the direction of text are not printable.
    if not line.replace("\n", "").replace("\t", "").isprintable():
        return "it has an invisible character"
    if _JOINED_OPERATOR.search(line):
        return "an operator goes on in the next line"
    return ""


def read_line(line: str, environment: Mapping[str, str]) -> Reading:
    """Read a command line.

    Args:
        line: The text after `bash --noprofile --norc -c`.
        environment: The variables that it starts with; those that the line itself sets are unknown.
    """
    fault = _fault_of_text(line)
    if fault:
        return Reading(faults=(fault,))
    reader = _LineReader(line, environment)
    try:
        reader.read()
    except UnreadableError as error:
        return Reading(tuple(reader.commands), (str(error),))
    if reader.used_names & reader.assigned_names:
        known = {
            name: value for name, value in environment.items() if name not in reader.assigned_names
        }
        return read_line(line, known)
    return Reading(tuple(reader.commands))
