"""An entry as editors and other hubs write it, read as the fields of a `ServerEntry`.

A key is known whatever its spelling: `enabledTools`, `enabled_tools` and `enabled-tools` are one. A
key that is not known is a warning, unless it seems to restrict what the server may do: then the
entry is an error, because a server that is less restricted than its owner wrote is worse than none.
Messages have keys as they are written: who shows them escapes them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import translate
from functools import lru_cache
from typing import Any, TypeAlias

from toolbus_toolkits.sandbox import SandboxConfig

__all__ = [
    "MAX_S",
    "denied_in",
    "denies_tools",
    "matches_any",
    "names_in",
    "plain_key",
    "read_entry",
    "restricts",
]

_Pairs: TypeAlias = list[tuple[str, Any]]
"""Keys as they are written, with their values."""

_ALLOW = r"(?:enabled?|included?|allow(?:ed)?|only|allowlist|whitelist)"
_DENY = (
    r"(?:disabled?|excluded?|deny|denied|block(?:ed)?|disallow(?:ed)?|hide|hidden|denylist|"
    r"blocklist|blacklist)"
)
_TIMEOUT = "timeout(?:ms|millis(?:econds)?|s|secs?|seconds)?"
_URL_KEYS = ("httpurl", "url", "serverurl", "uri", "endpoint")
"""The first one counts. Beside Gemini's `httpUrl`, `url` is the older SSE address of the server."""
_FIELDS: Mapping[str, str] = {
    "command": "command|cmd",
    "args": "args|arguments",
    "env": "env|environment|envs",
    "env_file": "envfile",
    "cwd": "cwd|workingdirectory|workingdir|workdir",
    "url": "|".join(_URL_KEYS),
    "headers": "headers|httpheaders",
    "transport": "transport|type|transporttype",
    "enabled": "enabled|isenabled|enable|active|isactive|autostart|startup|autoconnect",
    "disabled": "disabled|isdisabled|disable",
    "tools": "tools",
    "shared_with": "sharedwith",
    "agents": "assigntoagents",
    "stateful": "stateful",
    "memory_mb": "memorymb",
    "trusted": "trusted",
    "sandbox": "sandbox",
    "enabled_tools": (
        rf"(?:{_ALLOW}|available|permitted)tool(?:s|names)|"
        "tools?(?:allowlist|whitelist|include)"
    ),
    "disabled_tools": (
        rf"(?:{_DENY}|forbidden)tool(?:s|names)|"
        "tools?(?:denylist|blocklist|blacklist|exclude)|(?:kiro)?autoblock"
    ),
    "timeout_s": f"(?:request|call|tool|toolcall|execution)?{_TIMEOUT}",
    "connect_timeout_s": (
        f"(?:connect|connection|init|initialization|startup|start|network){_TIMEOUT}"
    ),
}
"""The keys of each field, as `plain_key` writes them."""
_FIELD = re.compile("|".join(f"(?P<{field}>{keys})" for field, keys in _FIELDS.items()))
_TRANSPORTS: Mapping[str, str] = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "streamable_http",
    "streamable": "streamable_http",
    "streamablehttp": "streamable_http",
    "sse": "sse",
    **dict.fromkeys(("remote", "custom", "auto", "url", "mcp"), ""),
}
"""How a transport is written, and which one it is; empty where the rest of the entry says it."""

_MOST_S = {"timeout_s": 3_600.0, "connect_timeout_s": 600.0}
"""A time above this is milliseconds: no editor that counts seconds takes more."""
MAX_S = {"timeout_s": 24 * 3_600.0, "connect_timeout_s": 600.0}
"""A caller would wait for days for a server that does not answer."""

_IGNORED = frozenset(
    # They loosen what an editor asks its user before a call; here the grants of callers decide.
    "autoapprove alwaysallow autoallow trust istrusted kiroautoapprove autoapproval "
    # They describe the entry, or concern the editor alone.
    "name key id title displayname description shortdescription longdescription icon iconurl "
    "iconpath logo logourl version tags category categories author publisher provider providerurl "
    "homepage repository documentation docs note notes comment schema source gallery registryurl "
    "installsource installedfrom watch watchpaths dev debug order required isdefault bundled "
    "chatmenu serverinstructions custominstructions customuservars alwaysload disabledreason "
    "createdat updatedat lastupdated group groups cachetoolslist".split()
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NO_NAME = re.compile(r"[\\^$|(){}+!]|^/.*/$")
"""What is in the patterns of others. As a name it would deny nothing, and nobody would notice."""
_OFF_STATES = ("disabled", "off", "stopped", "inactive", "paused", "blocked", "denied", "hidden")
_MAX_NESTED = 10_000
"""Values in a key that is not known: each takes some microseconds, and callers may add entries."""
# Of one list: each tool that a server lists is compared with all of them.
_MAX_NAMES = 1_000
_MAX_GLOBS = 100


def _chooses(value: object) -> bool:
    """Whether a value about tools may leave some of them out, in whatever words."""
    if isinstance(value, Mapping):
        return any(_chooses(rule) for rule in value.values() if not isinstance(rule, Mapping))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is False or is_number or isinstance(value, list)


_RESTRICTING: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    # What loosens restricts nothing, though its name may have a word of the others.
    ("(?:auto|always)(?:approv|allow|accept|confirm)|trust", lambda _: False),
    # What restricts by what it names: an empty value restricts nothing.
    (
        "exclu|disallow|den(?:y|ied)|disabl|block|filter|restrict|forbid|sandbox|blacklist|"
        r"readonly|approv|confirm|consent|toolset|\b(?:only|hide|hidden|skip|skipped|omit|omitted|"
        "ignore|ignored|limit|limits|ban|banned|except|reject|rejected|refuse|no|not|without|off|"
        r"paused|suspended|inactive)\b",
        lambda value: bool(value) and value not in ("never", "auto", "approve", "none", "off"),
    ),
    # What restricts by what it leaves out.
    (
        "includ|allow|permi[ts]|enabl|whitelist",
        lambda value: value is not True and value not in ("*", ["*"], {}),
    ),
    (rf"^(?:on|{_FIELDS['enabled']})\b", lambda value: value is False),
    (r"^(?:state|status|mode)\b", lambda value: value in _OFF_STATES),
    ("tool", _chooses),
)
"""What keys that are not known are named, and which values of theirs restrict. The first counts."""


def read_entry(data: object) -> tuple[dict[str, Any], list[str]]:
    """Read an entry in any form that editors write.

    Returns its values by the names of the fields of `ServerEntry`, and `env_file`; and what of it
    is not understood, and does not matter.

    Raises `ValueError`, without a value of the entry, for one that cannot be used as it is meant.
    """
    if not isinstance(data, Mapping):
        raise ValueError("must be an object")
    found, unknown = _by_field(_flattened(data))
    warnings: list[str] = []
    fields: dict[str, Any] = {}
    if _is_off(found):
        fields["disabled"] = True
    _read_target(found, fields)
    _read_transport(found, unknown, fields, warnings)
    for field in _MOST_S:
        for key, value in found[field]:
            fields[field] = _seconds(field, key, value, warnings)
    _read_tool_lists(found, fields, warnings)
    for key, names in found["agents"]:
        if not isinstance(names, list | tuple):
            raise ValueError(f"{key} must be a list of names")
        fields["shared_with"] = [f"name:{name}" for name in names]
    for field in ("shared_with", "stateful", "memory_mb"):
        for _, value in found[field][:1]:  # as it is, also where it is empty: shared with nobody
            fields[field] = value
    if found["trusted"]:
        # All spellings have to say it: one that denies it was written by somebody too.
        fields["trusted"] = all(_boolean(key, value) for key, value in found["trusted"])
    fields |= _sandbox(found["sandbox"])
    _judge(unknown, "", warnings)
    return fields, warnings


def matches_any(name: str, patterns: frozenset[str]) -> bool:
    """Whether a name is one of the patterns, in which `*` and `?` stand for characters."""
    return name in patterns or _globs(patterns).match(name) is not None


@lru_cache(maxsize=2 * 256)
def _globs(patterns: frozenset[str]) -> re.Pattern[str]:
    """Return one pattern for all with wildcards, so that a list costs one match for each tool."""
    # A bracket is a character of a name, where `fnmatch` would see a set.
    globs = [translate(glob.replace("[", "[[]")) for glob in sorted(filter(_is_glob, patterns))]
    return re.compile("|".join(globs) or r"(?!)")


def _is_glob(name: str) -> bool:
    return "*" in name or "?" in name


def names_in(key: str, value: object) -> list[str]:
    """Return a list of names. Raises `ValueError` for another value."""
    if value == "*" or value is True:
        return ["*"]
    if value is False:
        return []
    if not isinstance(value, list | tuple | set | frozenset) or not all(
        isinstance(name, str) for name in value
    ):
        raise ValueError(f"{key} must be a list of names")
    if len(value) > _MAX_NAMES:
        raise ValueError(f"{key} has more than {_MAX_NAMES:,} names")
    if sum(map(_is_glob, value)) > _MAX_GLOBS:
        raise ValueError(f"{key} has more than {_MAX_GLOBS} names with * or ?")
    return list(value)


def denies_tools(key: str) -> bool:
    """Whether a key holds tools that are not shown."""
    return _field_of(plain_key(key)) == "disabled_tools"


def denied_in(key: str, value: object) -> list[str]:
    """Return a list of tools that are not shown. Raises `ValueError` for another value."""
    names = names_in(key, value)
    for name in names:
        if _NO_NAME.search(name):
            raise ValueError(
                f"{key} has {name!r}, which is no name of a tool: only * and ? stand for characters"
            )
    return names


def restricts(key: str, value: object) -> bool:
    """Whether a key that is not known restricts something, by its name and value."""
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value.lower())
    text = f"{plain_key(key)} {' '.join(_WORD.findall(key)).lower()}"
    for pattern, is_restricting in _RESTRICTING:
        if value is not None and re.search(pattern, text):
            return is_restricting(value)
    return False


def _judge(unknown: _Pairs, path: str, warnings: list[str]) -> None:
    """Warn of keys that are not known. Raises `ValueError` if one of them restricts."""
    shown: list[str] = []
    for key, value in unknown:
        plain = plain_key(key)
        concerns_tools = "tool" in plain or not ("prompt" in plain or "resource" in plain)
        if plain in _IGNORED or key.startswith(("//", "$")) or not concerns_tools:
            continue  # of prompts and resources nothing is shown here
        if found := _restricting(key, value):
            raise ValueError(
                f'"{path}{found}" seems to restrict the server, and is '
                "not understood here: take it out, or use enabledTools and disabledTools"
            )
        if not key.startswith("_"):  # else a comment
            shown.append(path + key)
    if shown:
        warnings.append(f"keys that are not understood: {', '.join(shown)}")


def _restricting(key: str, value: object) -> str:
    """Return the path of a key that restricts, in a value and all that it holds; empty if none."""
    left: list[tuple[str, str, object]] = [(key, key, value)]
    for _ in range(_MAX_NESTED):
        if not left:
            return ""
        path, name, inner = left.pop()
        if restricts(name, inner):
            return path
        if isinstance(inner, Mapping):
            left += ((f"{path[:128]}.{name}", str(name), member) for name, member in inner.items())
        elif isinstance(inner, list):
            left += ((path, "", item) for item in inner)
    return key  # more than anybody writes


def _flattened(data: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Return the keys of an entry, without the objects that some editors put around them."""
    for key, value in data.items():
        match plain_key(str(key)), value:
            case "transport", Mapping():  # Continue's
                yield from ((str(name), inner) for name, inner in value.items())
            case "command", Mapping():  # Zed's
                for name, inner in value.items():
                    yield "command" if name == "path" else str(name), inner
            case "timeout", Mapping():  # opencode's `startup` and `request`, in milliseconds
                for name, inner in value.items():
                    yield f"{name}TimeoutMs", inner
            case _:
                yield str(key), value


def _field_of(plain: str) -> str | None:
    found = _FIELD.fullmatch(plain)
    return found and found.lastgroup


def _by_field(pairs: Iterable[tuple[str, Any]]) -> tuple[defaultdict[str, _Pairs], _Pairs]:
    """Return the keys of each field, and those that are not known. What is null is left out."""
    found: defaultdict[str, _Pairs] = defaultdict(list)
    unknown: _Pairs = []
    for key, value in pairs:
        field = _field_of(plain_key(key))
        if value is not None:
            (found[field] if field else unknown).append((key, value))
    return found, unknown


def _value(found: Mapping[str, _Pairs], field: str) -> Any:
    """Return the value of a field; None if it is empty. Raises `ValueError` for two values."""
    given = [pair for pair in found[field] if pair[1] not in ("", [], {})]
    for key, value in given[1:]:
        if value != given[0][1]:
            raise ValueError(f'has both "{given[0][0]}" and "{key}"')
    return given[0][1] if given else None


def _is_off(found: Mapping[str, _Pairs]) -> bool:
    states = [_boolean(key, value) for key, value in found["enabled"]]
    states += [not _boolean(key, value) for key, value in found["disabled"]]
    return not all(states)


def _read_target(found: Mapping[str, _Pairs], fields: dict[str, Any]) -> None:
    """Set what is started, and what is called."""
    command = _value(found, "command")
    args = _value(found, "args") or []
    if not isinstance(args, list | tuple):
        raise ValueError("args must be a list")
    if isinstance(command, list | tuple) and command:  # as opencode writes it
        args = [*command[1:], *args]
        command = command[0]
    urls = {plain_key(key): value for key, value in found["url"]}
    given = {
        "command": command,
        "args": [*map(_text, args)],
        "env": _texts("env", _value(found, "env")),
        "env_file": _value(found, "env_file"),
        "cwd": _value(found, "cwd"),
        "url": next((urls[key] for key in _URL_KEYS if urls.get(key)), None),
        "headers": _texts("headers", _value(found, "headers")),
    }
    fields |= {name: value for name, value in given.items() if value}


def _read_transport(
    found: Mapping[str, _Pairs], unknown: _Pairs, fields: dict[str, Any], warnings: list[str]
) -> None:
    """Set the transport: as it is written, else by what the entry has."""
    written = [_TRANSPORTS.get(plain_key(str(value))) for _, value in found["transport"] if value]
    transport = next(filter(None, written), "")
    if not transport and None in written:
        raise ValueError("transport must be one of stdio, http, streamable-http, sse")
    url = fields.get("url")
    if not url and "command" not in fields:
        keys = [plain_key(key) for key, _ in unknown]
        near = [key for name in ("command", "url") for key in get_close_matches(name, keys, 1)]
        hint = f", not {near[0]!r}" if near else ""
        raise ValueError(f'must have either "command" or "url"{hint}')
    if not transport and url:
        if "command" in fields:
            raise ValueError('has both "command" and "url": an entry has one of them')
        path = re.split("[?#]", str(url))[0]  # the path alone counts: an address may have a query
        transport = "sse" if path.rstrip("/").endswith("/sse") else "streamable_http"
    transport = transport or "stdio"
    needed, other = ("command", "url") if transport == "stdio" else ("url", "command")
    if needed not in fields:
        raise ValueError(f'a server with transport {transport} must have "{needed}"')
    if fields.pop(other, None):
        warnings.append(f"{other} is not used, because the transport is {transport}")
    fields["transport"] = transport


def _seconds(field: str, key: str, value: object, warnings: list[str]) -> float:
    """Return a time in seconds, which a key without a unit may have in milliseconds."""
    unit = plain_key(key).partition("timeout")[2]
    number = _number(key, value)
    if unit.startswith("m"):
        number /= 1_000
    elif not unit and number > _MOST_S[field]:
        if number <= MAX_S["timeout_s"] and number % 1_000:  # it may have been meant as seconds
            warnings.append(f"{key} {number:g} is read as milliseconds: {field} has seconds")
        number /= 1_000
    if key == field:  # ours: the entry is checked against its bounds
        return number
    return min(number, MAX_S[field])


def _read_tool_lists(
    found: Mapping[str, _Pairs], fields: dict[str, Any], warnings: list[str]
) -> None:
    """Set which tools are shown, from all lists of an entry together."""
    allowed = [names_in(key, value) for key, value in found["enabled_tools"]]
    denied = [name for key, value in found["disabled_tools"] for name in denied_in(key, value)]
    for key, value in found["tools"]:
        if isinstance(value, Mapping):
            _read_tools(f"{key}.", value, allowed, denied, warnings)
        else:
            allowed.append(names_in(key, value))
    allowed = [names for names in allowed if "*" not in names]
    if allowed:
        shown, *others = allowed
        for names in others:
            # A tool has to be on both. Two patterns that overlap leave what one of them names.
            both = [name for name in names if matches_any(name, frozenset(shown))]
            shown = both + [name for name in shown if matches_any(name, frozenset(names))]
        fields["enabled_tools"] = shown
    if denied:
        fields["disabled_tools"] = denied


def _read_tools(
    path: str,
    rules: Mapping[Any, Any],
    allowed: list[list[str]],
    denied: list[str],
    warnings: list[str],
) -> None:
    """Read `{"include": [...], "exclude": [...]}`, or `{tool: {"enabled": false}}`."""
    for word, rule in rules.items():
        name = str(word)
        plain = plain_key(name)
        field = _field_of(plain)
        if isinstance(rule, list) and re.fullmatch(_ALLOW, plain):
            allowed.append(names_in(path + name, rule))
        elif isinstance(rule, list) and re.fullmatch(_DENY, plain):
            denied += denied_in(path + name, rule)
        elif isinstance(rule, bool):
            is_for_all = plain == "default" or field in ("enabled", "disabled")
            if rule is (field == "disabled"):
                denied.append("*" if is_for_all else name)
        elif isinstance(rule, Mapping):
            found, unknown = _by_field((str(key), value) for key, value in rule.items())
            if _is_off(found):
                denied.append(name)
            others = found.keys() - {"enabled", "disabled"}
            unknown += (pair for field in others for pair in found[field])
            _judge(unknown, f"{path}{name}.", warnings)
        elif rule is not None:
            raise ValueError(f"{path}{name} is not understood here")


def _sandbox(pairs: _Pairs) -> dict[str, Any]:
    """Return the field `sandbox` as the fields of a `SandboxConfig`; empty if there is none."""
    names = {plain_key(name): name for name in SandboxConfig.model_fields}
    if len(pairs) > 1:
        raise ValueError(f'has both "{pairs[0][0]}" and "{pairs[1][0]}"')
    for key, value in pairs:
        if isinstance(value, Mapping):
            given = {names.get(plain_key(str(name)), name): inner for name, inner in value.items()}
            if len(given) < len(value):
                raise ValueError(f"{key} has a key twice")
            return {"sandbox": given}
        if isinstance(value, SandboxConfig):
            return {"sandbox": value}
        if value is True or isinstance(value, str):
            return {"sandbox": {"backend": "auto" if value is True else value}}
        if value is not False:
            raise ValueError(f"{key} must be an object, or the name of a backend such as auto")
    return {}


def _boolean(key: str, value: object) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise ValueError(f"{key} must be true or false")


def _number(key: str, value: object) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except (OverflowError, ValueError):
            pass
    raise ValueError(f"{key} must be a number")


def _text(value: object) -> object:
    """Return a number, true or false as the text that a program reads."""
    return json.dumps(value) if isinstance(value, bool | int | float) else value


def _texts(key: str, value: object) -> dict[str, Any]:
    """Return an object of texts, without what is null."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} must be an object")
    return {str(name): _text(text) for name, text in value.items() if text is not None}


def plain_key(key: str) -> str:
    """Return a key in the one spelling that all of its spellings have."""
    return re.sub(r"[^a-z0-9]", "", key.lower())
