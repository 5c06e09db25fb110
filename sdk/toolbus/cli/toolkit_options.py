"""The toolkits of a command line: how one is found by its reference, and configured by flags.

A reference is `module:attribute` or the name of an entry point of `toolbus.toolkits`. It means a
toolkit, a function without required arguments that returns one, or a factory (`ToolkitFactory`).

The fields of a factory's config have flags and variables, so the flags of a command line depend on
the toolkits in it. They are looked for only if the command line has a flag that is not one of the
command, or asks for help.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from typer.core import TyperCommand

from toolbus.auth.grants import is_toolkit_name
from toolbus.chunks.json_values import cut
from toolbus.cli.completion import TOOLKITS
from toolbus.cli.options import options_of, require_utf8, with_parameters
from toolbus.cli.own_commands import with_install_line
from toolbus.cli.suggestions import suggest_references
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.diagnostics.user_code_errors import load_error_text
from toolbus.factories.factory import ConfigField, ConfigProblem, ToolkitFactory, read_factory
from toolbus.settings import VARIABLES
from toolbus.tools.tool import Tool
from toolbus.tools.toolkit import Toolkit

__all__ = [
    "NO_FLAGS",
    "GivenFlags",
    "HostCommand",
    "OfferingCommand",
    "find_factory",
    "find_object",
    "find_toolkit",
    "last_name",
    "logger_names",
    "make_configured",
    "operator_values",
]

# References


def find_factory(reference: str) -> ToolkitFactory | None:
    """Return the factory that a reference means; None if it means something else.

    Raises what loading it raises, and UsageError for what neither is a toolkit nor makes one.
    """
    found = _load(reference)
    _refuse_unusable(reference, found)
    if _is_tool(found):
        return None
    return read_factory(found)


def find_toolkit(
    reference: str, configure: Callable[[ToolkitFactory], Toolkit] | None = None
) -> Toolkit:
    """Return the toolkit of a reference; if that is a function, the function's result.

    `configure` makes the toolkit of a factory; by default its config has no values.

    Raises:
        UsageError: The toolkit does not exist, cannot be loaded, or its config is not valid.
    """
    found = find_object(reference, (Toolkit,), configure or (lambda factory: factory.make({})))
    assert isinstance(found, Toolkit)
    return found


def find_object(
    reference: str, kinds: tuple[type, ...], configure: Callable[[ToolkitFactory], Any]
) -> Any:
    """Return what a reference means, of one of the given kinds, as `find_toolkit` does.

    One of the kinds is `Toolkit`.
    """
    try:
        made = found = _load(reference)
        _refuse_unusable(reference, found)
        if not _is_tool(found) and (factory := read_factory(found)) is not None:
            made = configure(factory)
        elif callable(found) and not isinstance(found, kinds):
            made = found()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        text = f"cannot load {reference}: {load_error_text(error)}"
        if isinstance(error, Exception) and _is_missing(reference, error):
            if suggestion := _suggestion(reference):
                text = f"{text}: {suggestion}"
            elif not isinstance(error, AttributeError):
                searched = f"the current folder ({os.getcwd()}) and on PYTHONPATH"
                text = f"{text}: modules are searched in {searched}"
        raise UsageError(text) from error
    if not isinstance(made, kinds):
        from toolbus.agents.agent import Agent  # it is large, and commands import this

        verb = "is" if made is found else "returned an object"
        text = f"{reference} {verb} of type {type(made).__name__}"
        text = f"{text}, not a toolkit or a function that returns one"
        if isinstance(made, Agent):
            raise UsageError(f"{text}: did you mean {reference}.toolkit?")
        raise UsageError(_with_suggestion(text, reference.partition(":")[0]))
    return made


def last_name(reference: str) -> str:
    """Return the name in flags and variables: an installed name, or the last of an attribute."""
    return reference.rpartition(":")[2].rpartition(".")[2]


def logger_names(reference: str) -> set[str]:
    """Return the names under which a toolkit logs by custom: its package, and its own name.

    None of ours: `toolbus` hosts many of them, and their names are also those of libraries.
    """
    module, colon, attribute = reference.partition(":")
    if not colon:
        entry = next(entry for entry in entry_points(group=TOOLKITS) if entry.name == reference)
        module = entry.module
        attribute = reference
    package = module.partition(".")[0]
    return set() if package.startswith("toolbus") else {package, attribute}


def _is_reference(word: str) -> bool:
    """Whether a word has the form of a reference, and names an installed toolkit if it must."""
    module, colon, attribute = word.partition(":")
    if not colon:
        return any(entry.name == word for entry in entry_points(group=TOOLKITS))
    return all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")])


def _load(reference: str) -> Any:
    module, colon, attribute = reference.partition(":")
    if not colon:
        installed = {entry.name: entry for entry in entry_points(group=TOOLKITS)}
        if reference in installed:
            return installed[reference].load()
        others = f"write module:attribute, or one of {', '.join(sorted(installed))}"
        suggestion = _suggestion(reference) or others
        raise UsageError(f"no installed toolkit is named {reference!r}: {suggestion}")
    if not module or not attribute:
        raise UsageError(f"{reference!r} is not a toolkit: write module:attribute")
    if not all(module.split(".")) or "/" in module:
        found = _suggestion(reference) or "name a module of the current folder, without a path"
        raise UsageError(f"{module!r} is not the name of a module: {found}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return reduce(getattr, attribute.split("."), importlib.import_module(module))


def _is_missing(reference: str, error: Exception) -> bool:
    """Whether the module or its attribute is missing, and not something that it imports."""
    module, _, attribute = reference.partition(":")
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return error.obj.__name__ == module and error.name == attribute.partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return False
    return module == error.name or module.startswith(f"{error.name}.")


def _suggestion(reference: str) -> str:
    """Return a suggestion from the current folder; empty if there is none."""
    if found := suggest_references(reference, Path.cwd()):
        return f"did you mean {' or '.join(found)}?"
    return ""


def _with_suggestion(text: str, reference: str) -> str:
    return "; ".join(filter(None, (text, _suggestion(reference))))


def _refuse_unusable(reference: str, found: Any) -> None:
    """Refuse a tool, which a call would run, and a function that is not a factory.

    Raises UsageError. A class, and an object with `__call__`, are called without arguments.
    """
    if _is_tool(found):
        _refuse_tool(reference, found)
    if inspect.iscoroutinefunction(found):
        text = "write a plain function that returns the toolkit, and prepare it in Tool.start"
        raise UsageError(f"{reference} is async: {text}")
    if inspect.isroutine(found) and read_factory(found) is None and (names := _required(found)):
        text = "a factory has one parameter, annotated with a pydantic model"
        raise UsageError(f"{reference} requires {', '.join(names)}: {text}")


def _refuse_tool(reference: str, found: Any) -> None:
    module, colon, name = reference.partition(":")
    if not colon:
        raise UsageError(f"the installed {reference} is a tool, not a toolkit")
    toolkit = module.rpartition(".")[2]
    if not is_toolkit_name(toolkit):
        toolkit = "tools"
    text = (
        f"{name} is a tool, not a toolkit: write {module}:NAME of a Toolkit, "
        f'for example `tools = Toolkit("{toolkit}", [{name}])`'
    )
    if read_factory(found) is not None:
        text = f"{text}; of a factory write the return annotation, `-> Toolkit`"
    raise UsageError(_with_suggestion(text, module))


def _is_tool(found: Any) -> bool:
    """Whether it is a tool, or a function that cannot create a toolkit."""
    if isinstance(found, Tool) or hasattr(found, "__toolbus_tool__"):
        return True
    if not inspect.isroutine(found) or inspect.isbuiltin(found):
        return False
    if "Toolkit" in str(getattr(found, "__annotations__", {}).get("return", "")):
        return False
    return inspect.iscoroutinefunction(found) or bool(_required(found))


def _required(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters without defaults; none if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in variadic
    ]


# Flags and variables of a config

_EXTRA = "toolbus.host.extra"
_GIVEN = "toolbus.host.given"
_SWITCH_OR_LIST: Mapping[str, Any] = {"switch": bool | None, "list": list[str] | None}


@dataclass(frozen=True, slots=True)
class GivenFlags:
    """The flags of fields in a command line."""

    values: Mapping[str, Any]
    """What was given, by parameter; None or absent for what was not."""
    flags: Mapping[str, str]
    """How each parameter is written, as far as that was looked for."""
    own: frozenset[str]
    """The flags of the command itself."""
    are_possible: bool = True
    """Whether fields have flags; else variables are all that sets them."""

    @classmethod
    def of(cls, context: typer.Context) -> GivenFlags:
        """Return those of a command that was parsed; none of one that has no such flags."""
        given: GivenFlags = context.meta.get(_GIVEN, NO_FLAGS)
        return given


NO_FLAGS = GivenFlags({}, {}, frozenset(), are_possible=False)
"""Those of what has no command line, such as toolkits that a file names."""


@dataclass(frozen=True, slots=True)
class _Setting:
    """A field of one toolkit of the command line."""

    toolkit: str
    field: ConfigField

    @property
    def parameter(self) -> str:
        """The name under which the command gets its flag."""
        return f"{self.toolkit}.{self.field.name}"

    @property
    def long_flag(self) -> str:
        """The flag that no other toolkit has."""
        return f"--{_dashed(self.toolkit)}-{_dashed(self.field.name)}"

    @property
    def short_flag(self) -> str:
        """The flag without the toolkit's name."""
        return f"--{_dashed(self.field.name)}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"TOOLBUS_{self.toolkit}_{self.field.name}".upper().replace("-", "_")

    @property
    def help(self) -> str:
        """The field's description, its default and its variable."""
        default = self.field.default_text
        parts = {
            self.field.info.description: True,
            "Required.": self.field.info.is_required(),
            f"Default: {default}.": default,
            "Repeatable.": self.field.kind == "list",
            f"[{self.variable}]": True,
        }
        return " ".join(part for part, is_shown in parts.items() if part and is_shown)

    def label(self, given: GivenFlags) -> str:
        """Return how to name it in an error: by where its value came from."""
        is_given = given.values.get(self.parameter) is not None
        if not given.are_possible or (not is_given and self._has_variable()):
            return self.variable
        flag = self.short_flag
        if flag in given.own:
            flag = self.long_flag
        return given.flags.get(self.parameter, flag)

    def _has_variable(self) -> bool:
        return bool(os.environ.get(self.variable)) and self.variable not in VARIABLES

    def value(self, given: GivenFlags) -> Any:
        """Return its value from the flag, else from the variable; None without both.

        Raises ValueError if the text of a structured value is not JSON.
        """
        value = given.values.get(self.parameter)
        if value is None and self._has_variable():
            return self.field.from_text(os.environ[self.variable])
        if isinstance(value, str):
            return self.field.from_text(value)
        if isinstance(value, list | tuple):
            return self.field.from_texts(list(value))
        return value


def make_configured(reference: str, factory: ToolkitFactory, given: GivenFlags) -> Toolkit:
    """Make the toolkit of a factory from flags and variables.

    Raises:
        UsageError: A value is not valid; the message names its flag or variable, and hides secrets.
        Exception: What the factory raises.
    """
    settings = _Settings(reference, factory, given)
    values = settings.values()
    try:
        config = factory.read(values)
    except ValidationError as error:
        settings.refuse(factory.problems(error, values))
        raise
    return factory.function(config)


def operator_values(
    reference: str, factory: ToolkitFactory, given: GivenFlags
) -> Mapping[str, Any]:
    """Return what flags and variables say of a factory's config; requests say the rest.

    Raises:
        UsageError: A value is not valid, or one is missing that only the operator sets.
    """
    settings = _Settings(reference, factory, given)
    values = settings.values()
    try:
        factory.read(values)
    except ValidationError as error:
        settings.refuse(
            problem
            for problem in factory.problems(error, values)
            if problem.field and (problem.field.is_operator_only or problem.field.name in values)
        )
    return values


class _Settings:
    """The settings of one factory, and where their values come from."""

    def __init__(self, reference: str, factory: ToolkitFactory, given: GivenFlags) -> None:
        self._name = last_name(reference)
        self._settings = {field.name: _Setting(self._name, field) for field in factory.fields}
        self._given = given

    def values(self) -> dict[str, Any]:
        """Return the values that were given. Raises UsageError for text that cannot be one."""
        values: dict[str, Any] = {}
        for name, setting in self._settings.items():
            try:
                value = setting.value(self._given)
            except ValueError as error:
                raise UsageError(f"{setting.label(self._given)}: {error}") from None
            if value is not None:
                values[name] = value
        return values

    def refuse(self, problems: Iterable[ConfigProblem]) -> None:
        """Raise UsageError for the first problems, if there are any."""
        texts = [self._problem_text(*problem) for problem in islice(problems, 3)]
        if texts:
            raise UsageError("; ".join(texts)) from None

    def _problem_text(
        self, field: ConfigField | None, path: tuple[int | str, ...], message: str
    ) -> str:
        if field is None:
            where = ".".join(map(str, path))
            return ": ".join(part for part in (f"toolkit {self._name}", where, message) if part)
        setting = self._settings[field.name]
        label = setting.label(self._given)
        if message == "Field required" and len(path) == 1:
            ways = dict.fromkeys((label, setting.variable))
            return f"toolkit {self._name} needs {' or '.join(ways)}"
        if below := "".join(f"/{cut(str(key))}" for key in path[1:]):
            label = f"{label} at {below}"
        return f"{label}: {message}"


# The command


class HostCommand(TyperCommand):
    """`toolbus host`, with the flags of the toolkits in its command line."""

    toolkit_flag: str | None = None
    """The flag whose values name the toolkits; without one, arguments name them."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's own parameters, then those of the toolkits, then `--help`."""
        own = super().get_params(ctx)
        return [*own[:-1], *ctx.meta.get(_EXTRA, ()), *own[-1:]]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, after adding the flags of the toolkits if there are flags that are not known."""
        own = super().get_params(ctx)
        line = _CommandLine(own, args, self.toolkit_flag)
        if not ctx.resilient_parsing and (line.unknown or line.asks_for_help):
            found = line.find_factories()
            ctx.meta[_EXTRA] = line.extra
            if line.unknown and line.failures:
                # The command reports why a toolkit cannot be loaded, rather than its flags.
                ctx.ignore_unknown_options = ctx.allow_extra_args = True
            self._refuse_ambiguous(ctx, found, line)
            if line.asks_for_help:
                for failure in line.failures:
                    typer.echo(f"toolbus: {failure}", err=True)
        rest = super().parse_args(ctx, args)
        taken = {option.name: ctx.params.pop(option.name, None) for option in line.extra}
        values = {name: value for name, value in taken.items() if value not in ([], ())}
        written = {option.name: option.opts[-1] for option in line.extra}
        ctx.meta[_GIVEN] = GivenFlags(values, written, frozenset(line.flags))
        return rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the shortest form of each flag: both do not fit into 80 columns."""
        for option in ctx.meta.get(_EXTRA, ()):
            option.opts = option.opts[-1:]
            option.secondary_opts = option.secondary_opts[-1:]
        super().format_help(ctx, formatter)

    def _refuse_ambiguous(self, ctx: Any, settings: Sequence[_Setting], line: _CommandLine) -> None:
        for flag, count in Counter(setting.long_flag for setting in settings).items():
            if count > 1 or flag in line.flags:
                ctx.fail(f"two parameters are written {flag}: host one of the toolkits elsewhere")
        for flag, several in _by_short_flag(settings).items():
            if len(several) > 1 and flag in line.unknown:
                written = " or ".join(setting.long_flag for setting in several)
                names = " and ".join(setting.toolkit for setting in several)
                ctx.fail(f"{flag} is a flag of {names}: write {written}")


class OfferingCommand(HostCommand):
    """A command that offers toolkits, with the flags of those in its command line."""

    toolkit_flag: str | None = "--offer"


class _CommandLine:
    """The words of a command line, and which of them are toolkits and unknown flags."""

    def __init__(self, own: Sequence[Any], args: Sequence[str], toolkit_flag: str | None) -> None:
        self._args = args
        self._own = [*own]
        self._toolkit_flag = toolkit_flag
        self.flags = {flag for option in own for flag in (*option.opts, *option.secondary_opts)}
        self.extra: list[Any] = []
        """The options of the fields."""
        self.failures: list[str] = []
        """Why toolkits could not be loaded."""
        self.unknown: set[str] = set()
        """Flags that no parameter has."""
        self._certain: list[str] = []
        self._uncertain: list[str] = []
        self._scan()

    @property
    def asks_for_help(self) -> bool:
        """Whether the help text is asked for."""
        return not {"--help", "--help-all", "-h"}.isdisjoint(self._args)

    def find_factories(self) -> list[_Setting]:
        """Load the toolkits, and return the fields of those that have factories.

        A word behind an unknown flag is its value or a toolkit. It is taken for a toolkit only if
        the others do not explain the flag.
        """
        settings = self._settings_of(self._certain)
        self._take(settings)
        if self.unknown and not self.failures:
            likely = [word for word in self._uncertain if _is_reference(word)]
            settings += self._settings_of(likely)
            self._take(settings)
        return settings

    def _settings_of(self, references: Iterable[str]) -> list[_Setting]:
        found = []
        for reference in dict.fromkeys(references):
            try:
                factory = find_factory(reference)
            except (Exception, SystemExit) as error:  # user code; the command reports it
                text = str(error) if isinstance(error, UsageError) else load_error_text(error)
                failure = f"the flags of {reference} are not known: {text}"
                self.failures.append(with_install_line(failure))
                continue
            if factory is not None:
                name = last_name(reference)
                found += [_Setting(name, field) for field in factory.fields]
        return found

    def _take(self, settings: Sequence[_Setting]) -> None:
        unique = {setting.parameter: setting for setting in settings}
        shorts = _by_short_flag(unique.values())
        shown = {
            setting.parameter
            for flag, several in shorts.items()
            for setting in several
            if len(several) == 1 and flag not in self.flags
        }
        self.extra = _options(unique.values(), shown)
        self._scan()

    def _scan(self) -> None:
        takes_value = {
            flag: not getattr(option, "is_flag", False)
            for option in [*self._own, *self.extra]
            for flag in (*option.opts, *option.secondary_opts)
            if flag.startswith("-")
        }
        self.unknown, self._certain, self._uncertain = set(), [], []
        named: list[str] = []  # by the flag that names toolkits
        words = iter(self._args)
        after_unknown = False
        for word in words:
            flag, has_value, value = word.partition("=")
            if word == "--":
                self._certain += words
            elif not word.startswith("-") or word == "-":
                (self._uncertain if after_unknown else self._certain).append(word)
                after_unknown = False
            elif flag not in takes_value:
                self.unknown.add(flag)
                after_unknown = not has_value
            else:
                after_unknown = False
                if takes_value[flag] and not has_value:
                    value = next(words, "")
                if flag == self._toolkit_flag:
                    named.append(value)
        if self._toolkit_flag is not None:
            self._certain = named
            self._uncertain = []


def _by_short_flag(settings: Iterable[_Setting]) -> dict[str, list[_Setting]]:
    found: dict[str, list[_Setting]] = defaultdict(list)
    for setting in {setting.parameter: setting for setting in settings}.values():
        found[setting.short_flag].append(setting)
    return found


def _options(settings: Iterable[_Setting], with_short: set[str]) -> list[Any]:
    parameters = [_parameter(setting, setting.parameter in with_short) for setting in settings]
    if not parameters:
        return []
    options = options_of(with_parameters(lambda **given: None, parameters))
    for option, setting in zip(options, settings, strict=True):
        option.name = setting.parameter
        require_utf8(option)
        if setting.field.kind == "switch":
            option.metavar = ""
    return options


def _parameter(setting: _Setting, with_short: bool) -> inspect.Parameter:
    field = setting.field
    flags = [setting.long_flag]
    if with_short:
        flags.append(setting.short_flag)
    metavar: str | None = field.metavar
    if field.kind == "switch":
        flags = [f"{flag}/--no-{flag.removeprefix('--')}" for flag in flags]
        metavar = None
    option = typer.Option(
        *flags,
        help=setting.help,
        metavar=metavar,
        show_default=False,
        rich_help_panel=f"Toolkit {setting.toolkit}",
    )
    name = f"{setting.toolkit}_{field.name}".replace("-", "_")
    kind = _SWITCH_OR_LIST.get(field.kind, str | None)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind, option],
    )


def _dashed(name: str) -> str:
    return name.lower().replace("_", "-").strip("-")
