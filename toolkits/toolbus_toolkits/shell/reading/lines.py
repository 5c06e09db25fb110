"""Reads a whole command line: the structure with `tree-sitter-bash`, the words with `words`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Query, QueryCursor

from toolbus_toolkits.shell.reading.evaluating import (
    assigned_names,
    evaluation_fault,
    is_plain_condition,
    is_special_name,
    without_calls,
)
from toolbus_toolkits.shell.reading.masks import (
    HereDocument,
    find_here_documents,
    with_plain_words,
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
"""Callers choose the line, and reading it takes time in proportion."""
# The grammar takes long where it does not understand many of them: 90 ms for 4,096 times `<`.
# Here-documents have none.
MAX_MARKS = 4_096
MAX_COMMANDS = 256
# Each level takes some ten frames of Python, of 1,000.
MAX_DEPTH = 20
# Of the parentheses of a here-document that may end a substitution. Each costs a parse.
MAX_ENDS = 64

_MISREAD_BY_GRAMMAR = re.compile(r"\$'|\n[ \t]*\\")
_MARK = re.compile(r"[ \t]+|[^A-Za-z0-9_./,:=-]")
# Control characters, surrogates, ends of lines that bash does not know, letters that change the
# direction of text, and tags: a person would see another line, also where they are quoted. Only the
# flags of some regions are written with tags.
_UNREADABLE_LETTER = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0001]"
    "|(?<![\U0001f3f4\U000e0020-\U000e007e])[\U000e0020-\U000e007f]"
)
_LETTERS_ABOVE_ASCII = re.compile(r"[^\x00-\x7f]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_TIME = re.compile(r"time(?:[ \t]+-p)?(?:[ \t]+--)?(?=[ \t\n|&;)]|[<>](?!\()|\Z)")
_FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_TEST_OPERATOR = re.compile(r"(?:&&|\|\||<(?!\()|>(?!\())(?=[ \t])")
_SUBSCRIPT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\[")
_REDIRECTION = re.compile(
    r"([0-9]*)(<<<|<<-?|<>|<&-?|>&-?|>>|>\||<(?!\()|>(?!\())|(&>>?)|(\{[A-Za-z_][A-Za-z0-9_]*\}[<>])"
)
# bash reads in another way if it starts with these: aliases, functions, modes.
_CHANGES_READING = re.compile("BASH_ENV|BASHOPTS|SHELLOPTS|POSIXLY_CORRECT|BASH_FUNC_.*", re.DOTALL)
# In other locales a byte of a letter may be a blank or a quote.
_PLAIN_LOCALE = re.compile(r"C|POSIX|.*\.utf-?8", re.IGNORECASE)
_LOCALE_NAMES = re.compile(r"LC_|LANG|export|read")
_ENDS_WORD = frozenset(["", *" \t\n|&;<>()"])
_DESCRIPTOR = re.compile(r"[0-9]+-?")
# bash joins lines before it looks for operators and expansions.
_JOINED_OPERATOR = re.compile(r"[|&;<>(]\\\n[\\|&;<>(]|\$\w*\\\n|\{\w*\\\n", re.ASCII)

# Words that begin or end a compound command where a command may begin.
_RESERVED = frozenset(
    "if then else elif fi case esac for select while until do done in function time { } ! [[ ]]"
    " coproc".split()
)
_OPERATORS = frozenset(["&&", "||", ";", "&", "|", "|&", "(", ")"])
# What bash would take with each operator as another one.
_LONGER = {"&": "&>", "|": "|&", ";": ";&", "(": "("}
_PIPES = frozenset(["|", "|&"])
_KEYWORDS = frozenset(
    "if then else elif fi case esac for select while until do done in { } !".split()
)
_SIMPLE = frozenset(
    "command variable_assignment variable_assignments declaration_command unset_command"
    " file_redirect herestring_redirect".split()
)
_REDIRECTS = frozenset(["file_redirect", "herestring_redirect"])
_LISTS = frozenset(["list", "pipeline", "negated_command"])
_COMPOUND = frozenset(
    "compound_statement subshell if_statement elif_clause else_clause while_statement"
    " do_group".split()
)


@cache
def _grammar() -> tuple[Parser, Query]:
    language = Language(tree_sitter_bash.language())
    query = Query(language, "[(command_substitution) (process_substitution)] @substitution")
    return Parser(language), query


def _structure(source: str) -> Node:
    """Return the tree of a text in ASCII. Raises `UnreadableError` if the grammar has none."""
    parser, _ = _grammar()
    # The grammar ends some of `$'...'` too late, takes a line that begins with a backslash for a
    # word of the line before, and does not know some words that bash knows.
    if not _MISREAD_BY_GRAMMAR.search(source):
        root = parser.parse(source.encode()).root_node
        if not root.has_error:
            return root
    root = parser.parse(with_plain_words(source).encode()).root_node
    if root.has_error:
        raise UnreadableError("it is not understood as a command line of bash")
    return root


class _LineReader:
    """Reads one text. `_index` is where it is; everything before is understood."""

    def __init__(self, text: str, environment: Mapping[str, str], depth: int = 0) -> None:
        self.commands: list[SimpleCommand] = []
        self.faults: list[str] = []
        self.assigned_names: set[str] = set()
        # By name: where the commands of its body are among `commands`.
        self.functions: dict[str, tuple[int, int]] = {}
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
        self._here_documents: dict[int, HereDocument] = {}
        # Here-documents whose operator is read, by where their body begins; and in which
        # substitution that was.
        self._pending: dict[int, tuple[HereDocument, int]] = {}
        self._substitution = -1
        # The operator or reserved word that was read last.
        self._operator = ""
        # tree-sitter counts bytes: with one byte for each letter its numbers are indexes.
        source = text
        if "<<" in text:
            self._here_documents = find_here_documents(text)
            source = without_here_documents(text, self._here_documents)
        if len(_MARK.findall(source)) > MAX_MARKS:
            raise UnreadableError(f"it has more than {MAX_MARKS} blanks, operators and quotes")
        source = _LETTERS_ABOVE_ASCII.sub("x", source)
        self._root = _structure(source)
        self._substitutions: dict[int, Node] = {}
        if "$(" in source or "<(" in source or ">(" in source:
            _, query = _grammar()
            captures = QueryCursor(query).captures(self._root)
            self._substitutions = {
                node.start_byte: node for node in captures.get("substitution", ())
            }

    def read(self) -> None:
        """Read the whole line into `commands`. Raises `UnreadableError`."""
        self._read_sequence(self._root.children)
        self._skip_blanks()
        if self._index != len(self._text):
            raise self._disagreement()
        if self._here_documents:
            raise UnreadableError("a here-document is not understood")
        if any(map(_redirects_all, self.commands)):
            self._mark_piped(0)

    def _disagreement(self) -> UnreadableError:
        shown = self._text[self._index : self._index + 20]
        return UnreadableError(f"it is not understood from `{shown}` on")

    # The text between words.

    def _skip_to(self, node: Node) -> None:
        """Go on to a node, before which only blanks stand."""
        self._skip_blanks()
        if node.start_byte != self._index:
            raise self._disagreement()

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

    def _mark_piped(self, start: int) -> None:
        """Note that the commands from a number on read a pipe, or a redirection around them."""
        commands = self.commands[start:]
        self.commands[start:] = [replace(command, is_piped=True) for command in commands]

    def _take(self, node: Node) -> None:
        """Read an operator or a reserved word."""
        kind = node.type
        if kind == "\n" and self._operator in _PIPES:
            return
        self._operator = kind
        if kind == "\n":
            return
        self._skip_to(node)
        end = node.end_byte
        text = self._text
        if text[self._index : end] != kind:
            raise self._disagreement()
        following = text[end : end + 1]
        if kind in _OPERATORS:
            is_whole = not following or following not in _LONGER.get(kind, "")
        else:
            is_whole = kind in _KEYWORDS and following in _ENDS_WORD
        if not is_whole:
            raise UnreadableError(f"`{text[self._index : end + 1]}` is not read")
        self._index = end

    # Statements.

    def _read_sequence(self, nodes: Sequence[Node]) -> None:
        # Lists nest once for each of their commands, so they are not read by recursion.
        waiting = list(reversed(nodes))
        while waiting:
            node = waiting.pop()
            kind = node.type
            if kind in _LISTS:
                waiting.extend(reversed(node.children))
            elif not node.is_named:
                self._take(node)
            elif kind != "comment":
                self._read_statement(node)

    def _read_statement(self, node: Node) -> None:
        kind = node.type
        self._skip_to(node)
        number = len(self.commands)
        is_piped = self._operator in _PIPES
        if kind in _SIMPLE or (kind == "test_command" and node.children[0].type == "["):
            self._read_simple_command()
        else:
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise UnreadableError("it is nested too deeply")
            read = _READERS.get(kind)
            if read is None:
                raise UnreadableError(f"a {kind.replace('_', ' ')} is not read")
            read(self, node)
            self._depth -= 1
            is_piped = self._read_redirections() or is_piped
        if is_piped:
            self._mark_piped(number)
        if self._index < node.end_byte:
            # Clauses end after their last newline.
            self._skip_blanks()
        if self._index < node.end_byte:
            raise self._disagreement()

    def _read_redirected(self, node: Node) -> None:
        body = node.children[0]
        if body.type in _REDIRECTS:
            self._read_simple_command()
        else:
            self._read_sequence([body])

    def _read_for(self, node: Node) -> None:
        is_listed = False
        for child in node.children:
            if child.type == "do_group":
                self._read_statement(child)
            elif child.type == "variable_name":
                self._skip_to(child)
                name = self._text[self._index : child.end_byte]
                if not _NAME.fullmatch(name):
                    raise self._disagreement()
                if is_special_name(name):
                    raise UnreadableError(f"`{name}` changes how bash reads the line")
                self._set_by_loop(name)
                self._index = child.end_byte
            elif not child.is_named:
                self._take(child)
                if child.type == "in":
                    is_listed = True
                    self._skip_words()
            elif not is_listed:
                raise self._disagreement()

    def _set_by_loop(self, name: str) -> None:
        """Add an assignment for the variable of a loop that programs, or bash, may know."""
        if not _OWN_NAME.fullmatch(name) or name in self._environment:
            assignment = Assignment(name, Word(name, None))
            command = SimpleCommand((), (assignment,), source=f"for {name}")
            self.assigned_names.update(assigned_names(command))
            self._add(command, len(self.commands))
        self.assigned_names.add(name)

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
                self._skip_to(child)
                self._index = child.end_byte
            elif child.type == "comment":
                continue
            elif not child.is_named:
                self._take(child)
                is_pattern = is_pattern and child.type != ")"
            elif is_pattern:
                self._read_word_at(child)
            else:
                self._read_sequence([child])

    def _read_word_at(self, node: Node) -> None:
        """Read a word that begins where a node does; no word may be read in its middle."""
        if node.end_byte <= self._index:
            return
        self._skip_to(node)
        _, self._index = self._words.read(self._index)
        if self._index < node.end_byte:
            raise self._disagreement()

    def _read_test(self, node: Node) -> None:
        """Read `[[ ... ]]`: tests joined by `&&` and `||`, without parentheses."""
        text = self._text
        number = len(self.commands)
        start = self._index
        word, self._index = self._words.read(self._index)
        words = [word]
        test: list[Word] = []
        while True:
            self._skip_blanks(newlines=False)
            match = _TEST_OPERATOR.match(text, self._index)
            if match is not None:
                word = Word(match[0], match[0])
                self._index = match.end()
            else:
                word, self._index = self._words.read(self._index)
            words.append(word)
            if word.source not in {"&&", "||", "]]"}:
                test.append(word)
                continue
            if not is_plain_condition(test):
                raise UnreadableError("`[[` may evaluate its arguments")
            test = []
            if word.source == "]]":
                break
        if self._index != node.end_byte:
            raise self._disagreement()
        # Its words are neither split nor replaced by names of files.
        unsplit = tuple(replace(word, is_split=False, is_pattern=False) for word in words)
        self._add(SimpleCommand(unsplit, source=text[start : self._index]), number)

    def _read_function(self, node: Node) -> None:
        kinds = [child.type for child in node.children[:4]]
        if kinds != ["word", "(", ")", "compound_statement"]:
            raise UnreadableError("a function in this form is not read")
        name, opening, closing, body, *more = node.children
        text = self._text[self._index : name.end_byte]
        if not _FUNCTION_NAME.fullmatch(text):
            raise UnreadableError("a function of this name is not read")
        self._index = name.end_byte
        self._take(opening)
        self._take(closing)
        number = len(self.commands)
        self._read_statement(body)
        if any(child.end_byte > self._index for child in more):
            raise self._disagreement()
        if text in self.functions:
            raise UnreadableError(f"the function `{text}` is defined twice")
        self.functions[text] = (number, len(self.commands))
        self._mark_piped(number)  # a call may stand in a pipeline

    # Simple commands.

    def _skip_words(self) -> None:
        self._skip_blanks(newlines=False)
        while self._index < len(self._text) and self._text[self._index] not in "\n|&;()":
            _, self._index = self._words.read_all(self._index)
            self._skip_blanks(newlines=False)

    def _read_simple_command(self) -> None:
        text = self._text
        start = self._index
        number = len(self.commands)
        words: list[Word] = []
        assignments: list[Assignment] = []
        redirections: list[Redirection] = []
        end = start
        # `time` is a reserved word at the start of a pipeline alone; else it is a program.
        is_measured = self._operator not in {"|", "|&"}
        while self._index < len(text):
            redirection = self._read_redirection()
            if redirection is not None:
                redirections.append(redirection)
                is_measured = False
            elif text[self._index] in "\n|&;()":
                break
            elif words:
                read, self._index = self._words.read_all(self._index)
                words += read
            elif match := _ASSIGNMENT.match(text, self._index):
                assignments.append(self._read_assignment(match))
                is_measured = False
            elif is_measured and (match := _TIME.match(text, self._index)):
                # The reserved word measures what follows.
                self._index = start = match.end()
                is_measured = False
            else:
                is_program = bool(assignments or redirections or self._operator in {"|", "|&"})
                words.append(self._read_name(may_be_time=is_program))
            end = self._index
            self._skip_blanks(newlines=False)
        self._operator = ""
        # The commands of its substitutions run before it, but it begins before them.
        source = text[start:end]
        command = SimpleCommand(tuple(words), tuple(assignments), tuple(redirections), source)
        fault = evaluation_fault(command)
        if fault:
            self.faults.append(fault)
        self.assigned_names.update(assigned_names(command))
        self._add(command, number)

    def _read_assignment(self, match: re.Match[str]) -> Assignment:
        if self._text.startswith("(", match.end()):
            raise UnreadableError("an array is not read")
        value, self._index = self._words.read(match.end(), is_assigned=True)
        if match[2]:
            value = Word(value.source, None)
        if is_special_name(match[1]):
            self.faults.append(f"`{match[1]}` changes how bash reads the line")
        return Assignment(match[1], value)

    def _read_name(self, *, may_be_time: bool) -> Word:
        if _SUBSCRIPT.match(self._text, self._index):
            raise UnreadableError("a subscript is not read")
        word, self._index = self._words.read(self._index)
        if word.source in _RESERVED and not (may_be_time and word.source == "time"):
            raise UnreadableError(f"`{word.source}` is not read here")
        if "\\\n" in word.source:
            # bash joins the lines before it looks for reserved words.
            raise UnreadableError("the name of a command goes on in the next line")
        if word.value is None or word.is_pattern:
            raise UnreadableError("the name of a command is known only when the line runs")
        return word

    def _add(self, command: SimpleCommand, number: int) -> None:
        self.commands.insert(number, command)
        if len(self.commands) > MAX_COMMANDS:
            raise UnreadableError(f"it has more than {MAX_COMMANDS} commands")

    def _read_redirections(self) -> bool:
        """Read the redirections behind a compound command, as a command of their own.

        Returns:
            Whether its commands read their input from one of them.
        """
        redirections: list[Redirection] = []
        self._skip_blanks(newlines=False)
        start = self._index
        end = start
        number = len(self.commands)
        while redirection := self._read_redirection():
            redirections.append(redirection)
            end = self._index
            self._skip_blanks(newlines=False)
        if redirections:
            source = self._text[start:end]
            self._add(SimpleCommand((), (), tuple(redirections), source), number)
        return any(redirection.is_input for redirection in redirections)

    def _read_redirection(self) -> Redirection | None:
        match = _REDIRECTION.match(self._text, self._index)
        if match is None:
            return None
        if match[4]:
            raise UnreadableError("a redirection to a variable is not read")
        operator = match[2] or match[3]
        descriptor = match[1] or ""
        if operator in {"<<", "<<-"}:
            body = self._read_here_document(match.end(1))
            return Redirection(operator, None, body, descriptor)
        self._index = match.end()
        if operator in {"<&-", ">&-"}:
            if self._text[self._index : self._index + 1] not in _ENDS_WORD:
                raise UnreadableError(f"a word directly behind `{operator}` is not read")
            return Redirection(operator, None, descriptor=descriptor)
        self._skip_blanks(newlines=False)
        word, self._index = self._words.read(self._index)
        if operator == "<<<":
            return Redirection(operator, None, word, descriptor)
        if operator in {"<&", ">&"} and _DESCRIPTOR.fullmatch(word.source):
            return Redirection(operator, None, descriptor=descriptor)
        return Redirection(operator, word, descriptor=descriptor)

    def _read_here_document(self, start: int) -> Word:
        document = self._here_documents.pop(start, None)
        if document is None:
            raise UnreadableError("a here-document is not understood")
        self._pending[document.body_start] = (document, self._substitution)
        self._index = document.end
        body = document.body
        if document.is_quoted or not any(mark in body for mark in "$`\\"):
            return Word(body, body)
        if "\\\n" in body:
            raise UnreadableError("a here-document joins lines")
        reader = WordReader(
            body,
            self._environment,
            read_commands=lambda index: self._read_in_body(body, index),
            read_backticks=self._read_backticks,
        )
        word = reader.read_here_document()
        self.used_names |= reader.used_names
        return word

    def _read_in_body(self, body: str, start: int) -> int:
        """Read the substitution that begins at an index of a here-document.

        The grammar does not see the body. The substitution ends where it is complete for the first
        time, as bash reads it from left to right.
        """
        end = start
        for _ in range(MAX_ENDS):
            end = body.find(")", end) + 1
            if not end:
                break
            try:
                inner = _LineReader(f": {body[start:end]}", self._environment, self._depth + 1)
                inner.read()
            except UnreadableError:
                continue
            self._adopt(inner, inner.commands[1:])
            return end
        raise UnreadableError("a substitution of a here-document is not understood")

    # Substitutions.

    def _read_substitution(self, start: int) -> int:
        node = self._substitutions.get(start)
        if node is None:
            raise UnreadableError(
                f"it is not understood from `{self._text[start : start + 20]}` on"
            )
        outer = (self._index, self._substitution, self._operator)
        number = len(self.commands)
        self._operator = ""
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
        self._index, self._substitution, self._operator = outer
        self._depth -= 1
        if self._text[start] == ">":
            self._mark_piped(number)
        return end + 1

    def _read_backticks(self, text: str) -> None:
        inner = _LineReader(text, self._environment, self._depth + 1)
        inner.read()
        self._adopt(inner, inner.commands)

    def _adopt(self, inner: _LineReader, commands: Sequence[SimpleCommand]) -> None:
        """Add what was read of a text inside of this one."""
        for command in commands:
            self._add(command, len(self.commands))
        self.faults += inner.faults
        if inner.functions:
            raise UnreadableError("a function in this place is not read")
        self.assigned_names |= inner.assigned_names
        self.used_names |= inner.used_names


# The compound commands that are understood, by the name that the grammar has for them.
_READERS: dict[str, Callable[[_LineReader, Node], None]] = {
    **dict.fromkeys(_COMPOUND, lambda reader, node: reader._read_sequence(node.children)),
    "redirected_statement": _LineReader._read_redirected,
    "for_statement": _LineReader._read_for,
    "case_statement": _LineReader._read_case,
    "test_command": _LineReader._read_test,
    "function_definition": _LineReader._read_function,
}


def _redirects_all(command: SimpleCommand) -> bool:
    """Whether all that follows reads from another place: `exec < file`."""
    is_exec = any(word.value == "exec" for word in command.words)
    return is_exec and any(redirection.is_input for redirection in command.redirections)


def _fault_of_text(line: str, environment: Mapping[str, str]) -> str:
    if len(line) > MAX_LINE_LENGTH:
        return f"it is longer than {MAX_LINE_LENGTH} characters"
    if _UNREADABLE_LETTER.search(line):
        return "it has an invisible character"
    changed = next(filter(_CHANGES_READING.fullmatch, environment), None)
    if changed is not None:
        return f"bash starts with `{changed}`, which may change how it reads"
    if _JOINED_OPERATOR.search(line):
        return "an operator goes on in the next line"
    if not line.isascii():
        locale = next(filter(None, map(environment.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "C")
        if not _PLAIN_LOCALE.fullmatch(locale) or _LOCALE_NAMES.search(line):
            return "its letters depend on the locale"
    return ""


def read_line(line: str, environment: Mapping[str, str]) -> Reading:
    """Read a command line: the text after `bash --noprofile --norc -c`.

    It starts with the variables of an environment; those that it sets itself are unknown.
    """
    fault = _fault_of_text(line, environment)
    if fault:
        return Reading(faults=(fault,))
    commands: Sequence[SimpleCommand] = ()
    faults: list[str] = []
    try:
        reader = _LineReader(line, environment)
        commands = reader.commands
        faults = reader.faults
        reader.read()
        changed = reader.assigned_names
        if reader.used_names and (reader.used_names & changed or "*" in changed):
            names = set() if "*" in changed else environment.keys() - changed
            reader = _LineReader(line, {name: environment[name] for name in names})
            reader.read()
        commands = without_calls(reader.commands, reader.functions, environment)
    except UnreadableError as error:
        faults.append(str(error))
    return Reading(tuple(commands), tuple(dict.fromkeys(faults)))
