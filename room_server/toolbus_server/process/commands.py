"""`toolbus serve` and `toolbus key`: they read flags, variables and files, and print.

Servers are run by `serve` and `workers`. A secret is written to files only, never printed.
"""

from __future__ import annotations

import json as json_codec
import re
import secrets
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from os import environ
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter

from toolbus.atomic_file import write_atomically
from toolbus.auth.keys import Algorithm, Key, KeyRing
from toolbus.bounded_logging import bounded_logger
from toolbus.cli.error_report import reporting, writing
from toolbus.cli.options import (
    ListenHost,
    ListenPort,
    ServerDrain,
    TlsCert,
    TlsKey,
    TrustedProxies,
    read_mib,
)
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.log_output import chosen_output
from toolbus_server.process.key_files import add_key
from toolbus_server.process.serve import (
    NO_STATE,
    ServeOptions,
    Switch,
    development_warning,
    load_keys,
    log_to_stderr,
    run,
)

__all__ = ["key", "serve"]

_logger = bounded_logger(__name__)
_TEXT = ("text", TypeAdapter(str))
_WHOLE_NUMBER = ("a whole number", TypeAdapter(int))
_NUMBER = ("a number", TypeAdapter(float))
_BOOLEAN = ("true or false", TypeAdapter(bool))
_TEXTS = ("a list of texts", TypeAdapter(list[str]))
# The settings that a file may have, with their types.
_FILE_SETTINGS: Mapping[str, tuple[str, TypeAdapter[Any]]] = MappingProxyType(
    {
        "host": _TEXT,
        "port": _WHOLE_NUMBER,
        "keys": _TEXT,
        "allow_query_token": _BOOLEAN,
        "drain": _NUMBER,
        "tls_cert": _TEXT,
        "tls_key": _TEXT,
        "trusted_origins": _TEXTS,
        "max_per_address": _WHOLE_NUMBER,
        "max_per_identity": _WHOLE_NUMBER,
        "max_per_room": _WHOLE_NUMBER,
        "max_waiting_memory": ("a whole number of MiB", TypeAdapter(int)),
        "trusted_proxies": _TEXTS,
        "redis": _TEXT,
        "node": _TEXT,
        "workers": _WHOLE_NUMBER,
        "metrics": ("'on' or 'off'", TypeAdapter(Switch)),
        "state": _TEXT,
        "gateway": _BOOLEAN,
        "gateway_port": _WHOLE_NUMBER,
        "trusted_hosts": _TEXTS,
    }
)


def _read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Take from a file the options that have no flag and no variable."""
    if path is None:
        return None
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is not a TOML file: {error}") from error
    unknown = sorted(settings.keys() - _FILE_SETTINGS.keys())
    if unknown:
        names = ", ".join(_FILE_SETTINGS)
        raise typer.BadParameter(f"{path}: unknown setting {unknown[0]!r}; known settings: {names}")
    options = {option.opts[0]: option for option in ctx.command.params}
    ctx.default_map = {}
    for name, value in settings.items():
        option: Any = options[f"--{name.replace('_', '-')}"]
        form, adapter = _FILE_SETTINGS[name]
        try:
            adapter.validate_python(value, strict=True)
            option.process_value(ctx, value)  # checks the range
        except typer.BadParameter as error:
            raise typer.BadParameter(f"{path}: {name}: {error.message}") from error
        except ValueError as error:  # a value may be a secret
            raise typer.BadParameter(f"{path}: {name}: must be {form}") from error
        ctx.default_map[str(option.name)] = value
    return path


_JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def serve(  # noqa: PLR0913 - a parameter for each flag
    dev: Annotated[
        bool, typer.Option("--dev", help="Listen on loopback only, with a development key.")
    ] = False,
    host: ListenHost = "127.0.0.1",
    port: ListenPort = 7717,
    keys: Annotated[
        Path | None, typer.Option(help="File with the trusted keys.", envvar="TOOLBUS_KEYS")
    ] = None,
    allow_query_token: Annotated[
        bool,
        typer.Option(
            "--allow-query-token",
            help="Accept tokens in ?token= too; proxies may log them.",
            envvar="TOOLBUS_ALLOW_QUERY_TOKEN",
        ),
    ] = False,
    drain_s: ServerDrain = 10.0,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    trusted_origins: Annotated[
        list[str],
        typer.Option(
            help="Origin of web pages that may connect; * is any. Repeat it for several.",
            envvar="TOOLBUS_TRUSTED_ORIGINS",
        ),
    ] = [],  # noqa: B006 - typer makes a new one
    max_per_address: Annotated[
        int,
        typer.Option(
            help="Limit of connections of one IP address; 0 for no limit.",
            envvar="TOOLBUS_MAX_PER_ADDRESS",
            min=0,
        ),
    ] = 10_000,
    max_per_identity: Annotated[
        int,
        typer.Option(
            help="Limit of participants of one identity; 0 for no limit.",
            envvar="TOOLBUS_MAX_PER_IDENTITY",
            min=0,
        ),
    ] = 4_096,
    max_per_room: Annotated[
        int,
        typer.Option(
            help="Limit of participants of one room; 0 for no limit.",
            envvar="TOOLBUS_MAX_PER_ROOM",
            min=0,
        ),
    ] = 10_000,
    max_waiting_mib: Annotated[
        int,
        typer.Option(
            "--max-waiting-memory",
            help="Limit in MiB of what waits until participants read it; 0 for no limit.",
            envvar="TOOLBUS_MAX_WAITING_MEMORY",
            metavar="MIB",
            parser=read_mib,
        ),
    ] = 1_024,
    trusted_proxies: TrustedProxies = [],  # noqa: B006 - typer makes a new one
    redis: Annotated[
        str | None,
        typer.Option(
            help="Join the servers that share this Redis: redis://, rediss://, redis+sentinel://.",
            envvar="TOOLBUS_REDIS_URL",
            metavar="URL",
        ),
    ] = None,
    node: Annotated[
        str,
        typer.Option(
            help="Name of this server among them; generated by default.", envvar="TOOLBUS_NODE"
        ),
    ] = "",
    workers: Annotated[
        int,
        typer.Option(
            help="Number of processes that share this port; more than one requires --redis. Each "
            "serves its own /metrics.",
            envvar="TOOLBUS_WORKERS",
            min=1,
            max=256,
        ),
    ] = 1,
    metrics: Annotated[
        Switch,
        typer.Option(
            help="Whether /metrics is answered; a worker shows only its own numbers.",
            envvar="TOOLBUS_METRICS",
        ),
    ] = "on",
    gateway: Annotated[
        bool,
        typer.Option(
            "--gateway",
            help="Let clients of MCP use the rooms too, as `toolbus gateway` does, whose variables "
            "are read: TOOLBUS_CALL_TIMEOUT, TOOLBUS_MAX_RESULT and others.",
            envvar="TOOLBUS_GATEWAY",
        ),
    ] = False,
    gateway_port: Annotated[
        int,
        typer.Option(
            help="Port of the gateway; 0 takes a free one.",
            envvar="TOOLBUS_GATEWAY_LISTEN_PORT",
            min=0,
            max=65535,
        ),
    ] = 7718,
    trusted_hosts: Annotated[
        list[str],
        typer.Option(
            help="Name by which clients reach the gateway; * is any. Repeat it for several.",
            envvar="TOOLBUS_TRUSTED_HOSTS",
        ),
    ] = [],  # noqa: B006 - typer makes a new one
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder for revocations and for tokens that live while they are used; with "
            "--redis these are in Redis.",
            envvar="TOOLBUS_STATE",
            metavar="FOLDER",
        ),
    ] = None,
    json: _JsonFlag = False,
    _config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="A TOML file with settings named like these flags.",
            envvar="TOOLBUS_SERVER_CONFIG",
            callback=_read_config,
            is_eager=True,
        ),
    ] = None,
) -> None:
    """Run a room server until SIGTERM or Ctrl-C.

    Calls in flight may finish. It needs keys: `toolbus key create` makes them. `--dev` needs none.
    A key file that changes is reloaded within a second, and at SIGHUP.
    """
    with reporting(as_json=json, local=True):
        options = ServeOptions(
            dev,
            host,
            port,
            keys,
            allow_query_token,
            drain_s,
            tls_cert,
            tls_key,
            trusted_origins,
            max_per_address,
            max_per_identity,
            max_per_room,
            max_waiting_mib,
            trusted_proxies,
            redis,
            node,
            workers,
            metrics,
            state,
            gateway,
            gateway_port,
            trusted_hosts,
        )
        output = chosen_output()
        is_record = output is not None and output.as_json
        warn = _logger.warning if is_record else partial(typer.echo, err=True)
        settings = options.to_settings(environ, warn)
        options.check_redis(warn)
        log_to_stderr()

        def announce(url: str, gateway_url: str | None = None) -> None:
            if dev:
                warn(development_warning(environ))
            elif state is None and redis is None:
                warn(NO_STATE)
            if json:
                further = {} if gateway_url is None else {"gateway": gateway_url}
                typer.echo(json_codec.dumps({"url": url, **further}))
                return
            typer.echo(f"listening on {url}")
            if gateway_url is not None:
                typer.echo(f"clients of MCP: {gateway_url}/rooms/ROOM/mcp")

        if workers > 1:
            from toolbus_server.process.workers import run_workers  # workers need Redis

            run_workers(options, settings, announce)
        else:
            run(options, settings, environ, announce)


_DEFAULT_KEYS = Path("keys.toml")
_NOT_REPLACED = re.compile(rb"^\s*(?:\[\[\s*)?(?:issuer|rule|secret|private)\b", re.MULTILINE)

key = typer.Typer(add_completion=False, no_args_is_help=True)


@key.callback()
def _keys() -> None:
    """Create the keys of a server, and show their public halves."""


@key.command("create")
def _create(
    kid: Annotated[str | None, typer.Option(help="Id of the key; generated by default.")] = None,
    iss: Annotated[
        str | None, typer.Option(help="Issuer of the tokens; by default the first key's.")
    ] = None,
    alias: Annotated[
        str | None,
        typer.Option(
            help="Short name of the issuer, needed beside others; by default as in the file."
        ),
    ] = None,
    alg: Annotated[
        Algorithm | None,
        typer.Option(
            help="Algorithm of the signature; by default the first key's, HS256 in a new file."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The key file; the key is appended to it.")
    ] = _DEFAULT_KEYS,
    json: _JsonFlag = False,
) -> None:
    """Create a key and append it to a file that only you can read.

    The first key of the file signs, all of them are trusted: give the file to the servers, then
    move the new key to the top, and remove the old one when its last token has expired.
    """
    with reporting(as_json=json, local=True):
        old = list(load_keys(out)) if out.exists() else []
        issuer = iss or next((ring_key.iss for ring_key in old), "toolbus")
        known = (ring_key.alias for ring_key in old if ring_key.iss == issuer and ring_key.alias)
        alias = alias or next(known, None)
        algorithm = alg or (old[0].alg if old else "HS256")
        kid = kid or f"{datetime.now(UTC):%Y-%m-%d}-{secrets.token_hex(3)}"
        try:
            created = Key.generate(kid=kid, iss=issuer, alg=algorithm, alias=alias)
            ring = add_key(out, created)
        except (OSError, ValueError) as error:
            raise UsageError(f"no key was created: {error}") from error
        fault = _alias_fault(ring)
        signing = ring.signing_key
        facts = {
            "kid": created.kid,
            "alg": created.alg,
            "iss": created.iss,
            "file": str(out),
            "signs": signing is not None and signing.kid == created.kid,
        }
        typer.echo(json_codec.dumps(facts) if json else created.kid)
        if not json:
            typer.echo(_advice(facts) + fault, err=True)


@key.command("public")
def _public(
    keys: Annotated[
        Path, typer.Option(help="File with the keys.", envvar="TOOLBUS_KEYS")
    ] = _DEFAULT_KEYS,
    out: Annotated[
        Path | None,
        typer.Option(help="Write them to this file, which is replaced in one step."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON Web Key Set.")] = False,
) -> None:
    """Print the public halves of the keys of a file.

    A server that has only these checks tokens and makes none: `toolbus key public --out
    public.toml`, then `toolbus serve --keys public.toml`. With `--json` other programs can check
    tokens. All but HS256 keys have a public half.
    """
    with reporting(as_json=json, local=True):
        ring = load_keys(keys)
        try:
            if json:
                text = json_codec.dumps({"keys": [ring_key.public_jwk() for ring_key in ring]})
                text = f"{text}\n"
            else:
                text = KeyRing(ring_key.public_half() for ring_key in ring).to_toml()
        except ValueError as error:
            raise UsageError(str(error)) from error
        if out is None:
            typer.echo(text, nl=False)
            return
        with writing(out):
            if out.is_file() and _NOT_REPLACED.search(out.read_bytes()):
                what = "tables [[issuer]] or [[rule]], or private keys, which would be lost"
                raise UsageError(f"{out} has {what}: name another file")
            write_atomically(out, text.encode())
        typer.echo(f"wrote {out}", err=True)


def _alias_fault(ring: KeyRing) -> str:
    """Return why no server accepts these keys together, as a further line of advice."""
    try:
        ring.aliases()
    except ValueError as error:
        return f"\n  no server starts with this file yet: {error}"
    return ""


def _advice(facts: Mapping[str, object]) -> str:
    if facts["signs"]:
        return (
            f"wrote {facts['file']}\n  next: toolbus serve --keys {facts['file']}\n"
            f"        toolbus token create --keys {facts['file']} --name NAME --preset user"
        )
    return (
        f"added to {facts['file']}; an older key still signs\n  next: give the file to every "
        "server, then move this key to the top"
    )
