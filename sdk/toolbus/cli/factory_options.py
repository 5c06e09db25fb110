"""The configs of factories in a command line: flags and variables for the fields of each.

The flags of a command line depend on the toolkits in it. They are looked for only if the command
line has a flag that is not one of the command, or asks for help.
"""

from __future__ import annotations

import inspect
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from typer.core import TyperCommand

from toolbus.chunks.json_values import cut
from toolbus.cli.options import options_of, require_utf8, with_parameters
from toolbus.cli.toolkit_references import find_factory, is_reference, last_name
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.diagnostics.user_code_errors import load_error_text
from toolbus.factories.factory import ConfigField, ConfigProblem, ToolkitFactory
from toolbus.settings import VARIABLES
from toolbus.tools.toolkit import Toolkit

__all__ = [
    "NO_FLAGS",
    "GivenFlags",
    "HostCommand",
    "OfferingCommand",
    "make_configured",
    "operator_values",
]

_EXTRA, _GIVEN = "toolbus.host.extra", "toolbus.host.given"
_SWITCH_OR_LIST: Mapping[str, Any] = {"switch": bool | None, "list": list[str] | None}


@dataclass(frozen=True, slots=True)
class GivenFlags:
    """The flags of fields in a command line."""

    values: Mapping[str, Any]
    """What was given, by parameter; None for what was not."""
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
        parts = [self.field.info.description or ""]
        parts += ["Required."] if self.field.info.is_required() else []
        parts += [f"Default: {default}."] if default else []
        parts += ["Repeatable."] if self.field.kind == "list" else []
        return " ".join(part for part in [*parts, f"[{self.variable}]"] if part)

    def label(self, given: GivenFlags) -> str:
        """Return how to name it in an error: by where its value came from."""
        is_given = given.values.get(self.parameter) is not None
        if not given.are_possible or (not is_given and self._has_variable()):
            return self.variable
        usual = self.long_flag if self.short_flag in given.own else self.short_flag
        return given.flags.get(self.parameter, usual)

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
            text = f"{where}: {message}" if where else message
            return f"toolkit {self._name}: {text}"
        setting = self._settings[field.name]
        label = setting.label(self._given)
        if message == "Field required" and len(path) == 1:
            ways = dict.fromkeys((label, setting.variable))
            return f"toolkit {self._name} needs {' or '.join(ways)}"
        below = "".join(f"/{cut(str(key))}" for key in path[1:])
        return f"{label}{' at ' + below if below else ''}: {message}"


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
        if not ctx.resilient_parsing and (line.has_unknown or line.asks_for_help):
            found = line.find_factories()
            ctx.meta[_EXTRA] = line.extra
            if line.has_unknown and line.failures:
                # The command reports why a toolkit cannot be loaded, rather than its flags.
                ctx.ignore_unknown_options = ctx.allow_extra_args = True
            self._refuse_ambiguous(ctx, found, line)
            if line.asks_for_help:
                for failure in line.failures:
                    typer.echo(f"toolbus: {failure}", err=True)
        rest = super().parse_args(ctx, args)
        taken = {option.name: ctx.params.pop(option.name, None) for option in line.extra}
        values = {name: None if value in ([], ()) else value for name, value in taken.items()}
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
        self._certain: list[str] = []
        self._uncertain: list[str] = []
        self._scan()

    @property
    def has_unknown(self) -> bool:
        """Whether there is a flag that no parameter has."""
        return bool(self.unknown)

    @property
    def asks_for_help(self) -> bool:
        """Whether the help text is asked for."""
        return "--help" in self._args or "-h" in self._args

    def find_factories(self) -> list[_Setting]:
        """Load the toolkits, and return the fields of those that have factories.

        A word behind an unknown flag is its value or a toolkit. It is taken for a toolkit only if
        the others do not explain the flag.
        """
        settings = self._settings_of(self._certain)
        self._take(settings)
        if self.has_unknown and not self.failures:
            likely = [word for word in self._uncertain if is_reference(word)]
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
                self.failures.append(f"the flags of {reference} are not known: {text}")
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
    """Return an option for each field."""
    parameters = [_parameter(setting, setting.parameter in with_short) for setting in settings]
    if not parameters:
        return []

    def collect(**given: Any) -> None:
        """Take the flags."""

    options = options_of(with_parameters(collect, parameters))
    for option, setting in zip(options, settings, strict=True):
        option.name = setting.parameter
        require_utf8(option)
        if setting.field.kind == "switch":
            option.metavar = ""
    return options


def _parameter(setting: _Setting, with_short: bool) -> inspect.Parameter:
    field = setting.field
    flags = [setting.long_flag, *([setting.short_flag] if with_short else [])]
    if field.kind == "switch":
        flags = [f"{flag}/--no-{flag.removeprefix('--')}" for flag in flags]
    option = typer.Option(
        *flags,
        help=setting.help,
        metavar=None if field.kind == "switch" else field.metavar,
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
