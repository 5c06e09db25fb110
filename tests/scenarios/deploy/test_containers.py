"""`deploy/` in real containers: the guide typed word for word, and three nodes whose parts fail.

Needs a Docker engine with Compose; tests/support/deploy/engine.sh starts one on Debian, also where
no registry of images is reached. The tests of this file share one project, so they run one after
the other.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
from redis.asyncio import Redis

from support.deploy import cut_route
from support.deploy.compose import ComposeFile
from support.deploy.containers import Project, image_variables, private_clone, project
from support.deploy.guide import (
    FOR_KUBERNETES,
    GUIDE,
    HOSTS,
    TYPED,
    TYPED_FOR_MANY,
    calls_in,
    check_answers,
    hosts_in,
)
from support.deploy.load import CALLS_IN_FLIGHT, calls_through
from support.documents.snippets import blocks_of
from support.processes.command_line import CommandLine
from support.redis.container import RedisContainer
from toolbus.client import reconnecting_connection

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
WHAT = "deploy/ in containers"
NODES = ("node-1", "node-2", "node-3")
REMOVE, START = (
    next(typed for typed in TYPED_FOR_MANY if words in typed)
    for words in (" rm ", " --no-recreate ")
)
UP_ALL = "docker compose up --detach"
MANY = ComposeFile("compose.nodes.yaml")
HEALTH = f"docker compose ps --format '{{{{.Health}}}}' {' '.join(NODES)} redis"
BALANCER_LOG = "docker compose logs balancer"
RUN = "docker run --rm --read-only --cap-drop ALL"
PUBLIC_REDIS = MANY.variables["TOOLBUS_REDIS_IMAGE"]
PATIENCE_S = 120


# The image

SECRETS = ("keys.toml", ".env", "sdk/toolbus/keys.toml", "sdk/ann.jwt", "toolkits/.env", "tls.pem")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A clone that only its owner can read, with secrets that lie around in it."""
    folder = tmp_path_factory.mktemp("clone")
    image_variables(WHAT)
    private_clone(folder)
    for name in SECRETS:
        (folder / name).write_text("a secret")
    with project(folder / "deploy", WHAT) as one:
        one.type("docker compose build")
        yield one


@pytest.mark.parametrize("buildkit", ["1", "0"])
def test_build_stage_gets_the_sources_and_no_secret(made: Project, buildkit: str) -> None:
    image = f"{made.name}-context"
    lines = f"FROM {made.image}\\nCOPY . /source\\n"
    build = f"printf '{lines}' | docker build --quiet --tag {image} --file - .."
    made.type(build, DOCKER_BUILDKIT=buildkit)
    try:
        listed = made.type(f"docker run --rm --user 0 --entrypoint find {image} /source -type f")
    finally:
        made.type(f"docker image rm --force {image}")
    root = made.folder.parent
    packages = ("sdk", "room_server", "toolkits")
    there = {path for name in packages for path in (root / name).rglob("*") if path.is_file()}
    there |= {root / name for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")}
    wanted = {str(path.relative_to(root)) for path in there} - {*SECRETS}
    assert {line.removeprefix("/source/") for line in listed.splitlines()} == wanted


def test_image_runs_without_rights_on_a_read_only_disk(made: Project) -> None:
    asked = "'import os; print(os.getuid())'"
    run = f"{RUN} --entrypoint python {made.image} -c {asked}"
    assert made.type(run) == "10001\n"
    for command in ("serve --help", "host --help", "trace --help"):
        made.type(f"{RUN} {made.image} {command}")


def test_own_toolkit_is_installed_into_an_image_as_the_guide_shows(
    made: Project, tmp_path: Path
) -> None:
    (shown,) = (block.text for block in blocks_of(GUIDE) if block.language == "dockerfile")
    text = shown.replace("FROM toolbus", f"FROM {made.image}")
    (tmp_path / "Dockerfile").write_text(text)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "words"\nversion = "1"\n')
    (tmp_path / "words.py").write_text("GREETING = 'hello'\n")
    image = f"{made.name}-words"
    made.type(f"docker build --quiet --tag {image} {tmp_path}")
    try:
        asked = "'import os, words; print(words.GREETING, os.getuid())'"
        run = f"{RUN} --entrypoint python {image} -c {asked}"
        assert made.type(run) == "hello 10001\n"
    finally:
        made.type(f"docker image rm --force {image}")


# The guide


def test_every_command_of_the_guide_works_in_the_order_of_the_page(
    made: Project, tmp_path: Path
) -> None:
    terminal = made.terminal()
    printed = {}
    for typed in TYPED:
        printed[typed] = type_one(terminal, typed)
        if typed == UP_ALL:
            no_container_that_runs_has_the_key(terminal)
        if " > ann.jwt" in typed:
            call_from_outside(terminal, tmp_path)
    check_answers(*(printed[typed] for typed in calls_in(TYPED)))
    assert "listening on" in printed["docker compose logs server"]
    assert nothing_runs(terminal)
    type_the_part_about_three_servers(made.terminal())
    build = FOR_KUBERNETES[0].replace("toolbus:0.1.0", made.image)
    base = made.variables.get("TOOLBUS_BASE_IMAGE")
    made.type(f"cd k8s && {build}" + (f" --build-arg BASE={base}" if base else ""))


def type_one(terminal: Project, typed: str) -> str:
    """Type a command; the list of tools again until all hosts are there, which takes a second."""
    if typed.endswith(" tools"):
        return terminal.type_until(typed, lambda table: hosts_in(table) == HOSTS)
    return terminal.type(typed)


def call_from_outside(terminal: Project, folder: Path) -> None:
    token = terminal.folder / "ann.jwt"
    assert token.stat().st_mode & 0o077 == 0
    url = f"ws://127.0.0.1:{terminal.port}"
    variables = {"TOOLBUS_URL": url, "TOOLBUS_TOKEN_FILE": str(token)}
    outcome = CommandLine(folder, variables).run("call", "clock.now", "timezone=Europe/Oslo")
    assert outcome.code == 0, outcome.err


def no_container_that_runs_has_the_key(terminal: Project) -> None:
    shown = "{{range .Mounts}}{{.Name}}:{{.Destination}} {{end}}"
    mounts = f"docker inspect --format '{shown}' $(docker compose ps %s --quiet)"
    in_keys = f"{terminal.name}_keys:/keys "
    assert terminal.type(mounts % "--all").count(in_keys) == 1  # of `tokens`
    running = terminal.type(mounts % "")
    assert f"{terminal.name}_public:/public " in running
    assert f"{terminal.name}_keys" not in running
    server = "$(docker compose ps --services | grep --max-count 1 -E 'server|node')"
    public = terminal.type(f"docker compose exec -T {server} cat /public/keys.toml")
    assert "PUBLIC KEY" in public
    assert "PRIVATE" not in public


def type_the_part_about_three_servers(terminal: Project) -> None:
    choice, *others = TYPED_FOR_MANY
    terminal.export(choice)
    for typed in others:
        if typed == REMOVE:
            before = containers(terminal)
        if typed == BALANCER_LOG:
            # A node that is back before its second failed check is not in the log at all.
            terminal.type_until(typed, all_nodes_are_up)
            # A later `up` finds nothing to change either.
            terminal.type("docker compose up --detach")
            after = containers(terminal)
            changed = {name for name in before if before[name] != after[name]}
            assert changed == {"node-2"}
            no_container_that_runs_has_the_key(terminal)
        else:
            type_one(terminal, typed)
    assert nothing_runs(terminal)


def containers(terminal: Project) -> dict[str, str]:
    """Return the container of each service."""
    names = terminal.type("docker compose config --services").split()
    return {name: terminal.type(f"docker compose ps --all --quiet {name}") for name in names}


def nothing_runs(terminal: Project) -> bool:
    ours = f"--filter label=com.docker.compose.project={terminal.name}"
    kinds = ("ps --all", "volume ls", "network ls")
    return not any(terminal.type(f"docker {kind} --quiet {ours}") for kind in kinds)


# Three nodes whose parts fail


@pytest.fixture(scope="module")
def network(made: Project) -> Iterator[Project]:
    """Three nodes, Redis and balancer."""
    one = made.terminal()
    one.down()  # what a test that failed has left
    one.export(TYPED_FOR_MANY[0])
    one.type("chmod a+r haproxy.cfg")
    one.type("docker compose up --detach --wait balancer")
    yield one
    one.type("docker compose down --volumes")


async def type_in(network: Project, *commands: str) -> None:
    for command in commands:
        await asyncio.to_thread(network.type, command)


async def until_all_serve(network: Project) -> None:
    """Wait until Redis and nodes are healthy, and the balancer sends participants to each node."""
    await asyncio.to_thread(network.type_until, HEALTH, all_are_healthy)
    await asyncio.to_thread(network.type_until, BALANCER_LOG, all_nodes_are_up)


def all_are_healthy(states: str) -> bool:
    return states.split() == ["healthy"] * (len(NODES) + 1)


def all_nodes_are_up(log: str) -> bool:
    """Whether the last change of each node in the balancer's log is that it is up.

    A node whose name was gone for 30 s comes back with its name twice: `node-2 ('node-2') is UP`.
    """
    changes = r"Server nodes/(node-\d)(?: \('[^']*'\))? (?:is|was) (\w+)"
    return all(state == "UP" for state in dict(re.findall(changes, log)).values())


async def test_rolling_restart_fails_no_call(network: Project, tmp_path: Path) -> None:
    """Nor one of 5 s: a node that drains waits for it, up to 8 s."""
    async with calls_through(network, tmp_path, long=True) as load:
        for node in NODES:
            await load.continues()
            remove, start = (each.replace("node-2", node) for each in (REMOVE, START))
            await type_in(network, remove, start)
            await until_all_serve(network)
        await load.continues()
    assert not load.failed


class Fault(NamedTuple):
    """A fault of the network, and how it is healed.

    The variable `NODE` is a node with a caller that the fault concerns.
    """

    cause: str
    heal: str
    ends_by_itself: bool
    """Whether all callers can call again while it lasts."""
    shows: Mapping[str, float] = MappingProxyType({})
    """The values that metrics of the nodes reach while it lasts."""
    nodes: Sequence[str] = ("$NODE",)
    """The nodes with these metrics."""
    has_host: bool = True
    """Whether a host is connected to that node, too."""


UP = "docker compose up --detach --no-recreate --wait"
CONTAINER, NETWORK = "${COMPOSE_PROJECT_NAME}-${NODE}-1", "${COMPOSE_PROJECT_NAME}_nodes"
ADDRESS = (
    "$(docker inspect ${COMPOSE_PROJECT_NAME}-redis-1"
    " --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}')"
)
IN_NETWORK_OF_NODE = (
    f"docker run --rm --interactive --user 0 --cap-add NET_ADMIN --network container:{CONTAINER}"
    f" --entrypoint python $TOOLBUS_IMAGE - %s {ADDRESS} < {cut_route.__file__}"
)
FAULTS = {
    "node-killed": Fault("docker compose kill $NODE", f"{UP} $NODE", ends_by_itself=True),
    "node-paused": Fault(
        "docker compose pause $NODE", "docker compose unpause $NODE", ends_by_itself=True
    ),
    "node-cut-off": Fault(
        f"docker network disconnect {NETWORK} {CONTAINER}",
        f"docker network connect --alias $NODE {NETWORK} {CONTAINER}",
        ends_by_itself=True,
    ),
    "balancer-killed": Fault(
        "docker compose kill balancer", f"{UP} balancer", ends_by_itself=False
    ),
    "redis-restarted": Fault("docker compose restart redis", f"{UP} redis", ends_by_itself=False),
    "redis-paused": Fault(
        "docker compose pause redis",
        "docker compose unpause redis",
        ends_by_itself=False,
        shows={"toolbus_redis_outage_seconds": 11.0},
        nodes=NODES,
    ),
    "redis-lost-by-one-node": Fault(
        IN_NETWORK_OF_NODE % "cut",
        IN_NETWORK_OF_NODE % "restore",
        ends_by_itself=True,
        shows={"toolbus_node_isolated": 1.0},
        has_host=False,
    ),
}
SILENCE_S = 600.0


@pytest.mark.parametrize("name", FAULTS)
async def test_errors_are_true_and_calls_continue_after_the_fault(
    network: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # The balancer must close connections through a lost node: callers do not end silent ones.
    monkeypatch.setattr(reconnecting_connection, "PING_TIMEOUT_S", SILENCE_S)
    fault, here = FAULTS[name], network.terminal()
    async with calls_through(here, tmp_path) as load:
        await load.continues()
        here.variables["NODE"] = await asyncio.to_thread(node_with_a_caller, here, fault.has_host)
        began_at = time.monotonic()
        async with caused(here, fault):
            if fault.ends_by_itself:
                await load.continues()
                print(f"{name}: all call again after {time.monotonic() - began_at:.1f} s")  # noqa: T201 - for a person
            await asyncio.to_thread(until_nodes_show, here, fault)
            print(f"{name}: lasted {time.monotonic() - began_at:.1f} s")  # noqa: T201 - for a person
        await until_all_serve(here)
        await load.continues()
    print(f"{name}: {load.summary()}")  # noqa: T201 - for a person
    assert not load.unexplained
    # Those in flight at the fault; a caller that moves may then choose a host that is lost too.
    assert len(load.failed) <= 2 * CALLS_IN_FLIGHT


@asynccontextmanager
async def caused(network: Project, fault: Fault) -> AsyncIterator[None]:
    await type_in(network, fault.cause)
    try:
        yield
    finally:
        await type_in(network, fault.heal)


def node_with_a_caller(network: Project, has_host: bool) -> str:
    """Find a node to which a caller is connected, and a host or none."""
    found = {name: numbers_of(network, name) for name in NODES}
    for name, numbers in found.items():
        hosts = numbers["toolbus_toolkits"]
        if numbers["toolbus_participants"] > hosts and bool(hosts) == has_host:
            return name
    raise AssertionError(f"no node has a caller and has_host={has_host}: {found}")


def until_nodes_show(network: Project, fault: Fault) -> None:
    deadline = time.monotonic() + PATIENCE_S
    for name in fault.nodes if fault.shows else ():
        while not all(
            numbers_of(network, name)[metric] >= least for metric, least in fault.shows.items()
        ):
            assert time.monotonic() < deadline, f"{name} never showed {dict(fault.shows)}"


def numbers_of(network: Project, node: str) -> dict[str, float]:
    """Read the metrics of a node without labels."""
    url = "http://127.0.0.1:7717/metrics"
    program = f"from urllib.request import urlopen as o; print(o('{url}').read().decode())"
    page = network.type(f'docker compose exec -T {node} python -c "{program}"')
    rows = (line.split() for line in page.splitlines() if not line.startswith("#"))
    return {row[0]: float(row[1]) for row in rows if len(row) == 2 and "{" not in row[0]}


# A container of the library testcontainers


async def test_redis_in_a_container_is_suspended_killed_and_started_again(tmp_path: Path) -> None:
    image = image_variables("Redis in a container").get("TOOLBUS_REDIS_IMAGE", PUBLIC_REDIS)
    server = RedisContainer(image, tmp_path)
    await server.start()
    try:
        async with asyncio.timeout(PATIENCE_S), Redis.from_url(server.url) as client:
            await client.set("key", "value")
            server.freeze()
            asked = asyncio.ensure_future(client.get("key"))
            assert not asked.done()
            server.thaw()
            assert await asked == b"value"
        await server.kill()
        await server.start()
        async with Redis.from_url(server.url) as client:
            assert await client.get("key") is None
    finally:
        await server.kill()
