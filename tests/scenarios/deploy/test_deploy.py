"""`deploy/` as processes: what the compose files start is started here, and called.

Each of our services runs with the command and the variables of the file
(support/deploy/compose.py). For the file of many nodes a real Redis and a real haproxy run instead
of containers.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.deploy.compose import DEPLOY, ComposeFile, Composition, composed, from_dockerfile
from support.deploy.guide import (
    GUIDE,
    TYPED,
    TYPED_FOR_MANY,
    calls_in,
    check_answers,
    local_images,
)
from support.deploy.haproxy import haproxy_program, running_haproxy
from support.patience import PATIENCE_S
from support.redis.blocking import blocking_redis
from support.telemetry.otlp_collector import Collector, Sent, collecting, draw

ROOT = Path(__file__).parents[3]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
ONE, MANY = ComposeFile("compose.yaml"), ComposeFile("compose.nodes.yaml")
FILES = pytest.mark.parametrize("file", [ONE, MANY], ids=lambda file: str(file.name))
TOKENS = {name: f"token-{name}:/tokens/{name}" for name in ("sql", "clock", "you")}
"""The volume with the token of each participant, and where it is mounted."""
EACH_OF_OURS = pytest.mark.parametrize(
    ("file", "name"),
    [
        pytest.param(file, name, id=f"{file.name}-{name}")
        for file in (ONE, MANY)
        for name in file.ours
    ],
)


def answer(composition: Composition, typed: Sequence[str]) -> None:
    """Type the commands that look around and call, and check their output."""
    outcomes = {each: composition.type(each) for each in typed}
    assert {each.code for each in outcomes.values()} == {0}, outcomes
    check_answers(*(outcome.out for outcome in outcomes.values()))


def tree_of(collector: Collector, name: str) -> list[str]:
    """Draw the one trace of a call once it contains the tool's span and all above it."""
    (trace_id,) = {span.trace_id for span in list(collector.spans) if span.name == name}
    spans = collector.wait_for(trace_id, 4)
    while not is_whole(spans):
        spans = collector.wait_for(trace_id, len(spans) + 1)
    return draw(spans)


def is_whole(spans: Sequence[Sent]) -> bool:
    known = {span.span_id for span in spans}
    tops = [span for span in spans if span.parent_id not in known]
    from_the_top = [each.parent_id for each in tops] == [""]
    return from_the_top and any(span.kind == "INTERNAL" for span in spans)


def test_services_of_the_compose_file_answer_calls_that_are_seen_as_trees(tmp_path: Path) -> None:
    with collecting() as collector:
        places = {"http://jaeger:4318": collector.endpoint}
        with composed(ONE, tmp_path, places) as composition:
            answer(composition, calls_in(TYPED))
            tree = tree_of(collector, "sql.query")
    assert tree == [
        "CLIENT sql.query @toolbus-cli",
        "  SERVER sql.query @toolbus-server",
        "    SERVER sql.query @sql",
        "      INTERNAL execute_tool query @sql",
    ]


def test_tokens_are_written_once_and_again_for_another_key(tmp_path: Path) -> None:
    """Services that are connected go on, and the server trusts the new key within a second."""
    with composed(ONE, tmp_path, {}) as composition:
        files = [tmp_path / f"token-{name}" / "token.jwt" for name in TOKENS]
        first = [file.read_bytes() for file in files]
        composition.start("tokens")
        assert [file.read_bytes() for file in files] == first
        (tmp_path / "keys" / "keys.toml").unlink()
        composition.start("tokens")
        assert not {file.read_bytes() for file in files} & set(first)
        (call,) = (typed for typed in calls_in(TYPED) if " clock.now " in typed)
        deadline = time.monotonic() + PATIENCE_S
        while (outcome := composition.type(call)).code:
            assert time.monotonic() < deadline, outcome.err


def test_three_nodes_a_redis_and_a_balancer_answer_the_same_calls(tmp_path: Path) -> None:
    haproxy_program()
    with blocking_redis() as redis, collecting() as collector:
        places = {
            "http://jaeger:4318": collector.endpoint,
            "redis:6379": redis,
            str(trusted_network()): "127.0.0.1",
        }
        tree = call_many(tmp_path, places, collector)
    # Between the two ends it passes one node or two.
    assert tree[0] == "CLIENT sql.query @toolbus-cli"
    assert tree[1] == "  SERVER sql.query @toolbus-server"
    assert tree[-2].strip() == "SERVER sql.query @sql"
    assert tree[-1].strip() == "INTERNAL execute_tool query @sql"


def call_many(folder: Path, places: dict[str, str], collector: Collector) -> list[str]:
    """Start the file of many nodes, and call through its balancer."""

    def balance(composition: Composition) -> None:
        nodes = {
            name: composition.places[f"{name}:7717"]
            for name in MANY.ours
            if MANY.ours[name]["command"] == ["serve"]
        }
        assert len(nodes) == 3
        balancer = composition.stack.enter_context(running_haproxy(folder, nodes))
        composition.places["balancer:7717"] = balancer.address

    others = {"balancer": balance}
    with composed(MANY, folder, places, others) as composition:
        answer(composition, calls_in(TYPED))
        tree = tree_of(collector, "sql.query")
        for typed in calls_in(TYPED_FOR_MANY):
            assert composition.type(typed).code == 0, typed
        return tree


def trusted_network() -> object:
    """The network that nodes trust; only services that must be are in it."""
    (network,) = MANY.content["networks"]["nodes"]["ipam"]["config"]
    return ip_network(network["subnet"])


def test_service_that_is_not_healthy_fails_the_check_of_the_image() -> None:
    command = from_dockerfile("HEALTHCHECK")
    gone = [each.replace("127.0.0.1:7717", "127.0.0.1:1") for each in command]
    assert gone != command
    done = subprocess.run([sys.executable, *gone[1:]], capture_output=True, timeout=PATIENCE_S)
    assert done.returncode == 1


# Promises of the files


@EACH_OF_OURS
def test_service_can_write_nowhere_but_where_it_must_and_gains_no_rights(
    file: ComposeFile, name: str
) -> None:
    service = file.ours[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in service  # the image's own, see below
    writable = {each for each in service.get("volumes", ()) if not each.endswith(":ro")}
    if name == "tokens":
        assert writable == {"keys:/keys", "public:/public", *TOKENS.values()}
    else:
        assert writable <= {"inventory": {"data:/data"}, "server": {"state:/state"}}.get(
            name, set()
        )


@EACH_OF_OURS
def test_process_1_of_a_service_waits_for_what_tools_left_behind(
    file: ComposeFile, name: str
) -> None:
    assert file.ours[name]["init"] is True


@FILES
def test_ports_are_open_to_this_machine_alone(file: ComposeFile) -> None:
    for service in file.services.values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), port


@FILES
def test_only_the_service_that_ends_has_the_key_and_each_other_one_its_own_token(
    file: ComposeFile,
) -> None:
    assert not re.search(r"[A-Za-z0-9_-]{40,}", file.text), "a secret"
    for name, service in file.ours.items():
        variables = service.get("environment", {})
        assert not {"TOOLBUS_TOKEN", "TOOLBUS_NAME"} & variables.keys()
        command, of_secrets = service["command"][0], {"keys", *(f"token-{each}" for each in TOKENS)}
        mounted = {each.partition(":")[0] for each in service["volumes"]} & of_secrets
        if name == "tokens":
            assert mounted == of_secrets
            assert service.get("restart", "no") == "no"  # it ends
        elif command == "serve":
            assert (mounted, variables["TOOLBUS_KEYS"]) == (set(), "/public/keys.toml")
            assert {"TOOLBUS_STATE", "TOOLBUS_REDIS_URL"} & variables.keys()  # for `until`
            assert file.needs(name)["tokens"] == "service_completed_successfully"
        elif name != "inventory":
            identity = {"host": service["command"][-1], "tools": "you"}[command]
            assert mounted == {f"token-{identity}"}
            assert f"{TOKENS[identity]}:ro" in service["volumes"]
            assert variables["TOOLBUS_TOKEN_FILE"] == f"/tokens/{identity}/token.jwt"
            assert "TOOLBUS_KEYS" not in variables
        if command == "host":
            where = urlsplit(variables["TOOLBUS_URL"])
            assert where.port == 7717
            assert where.hostname in file.needs(name), name


def test_variables_are_those_that_the_reference_lists() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    for_compose = {name for file in (ONE, MANY) for name in file.variables}
    assert for_compose == set(re.findall(r"^\| `(TOOLBUS_[A-Z_]+)` \|", GUIDE, re.MULTILINE))
    listed = set(re.findall(r"`(TOOLBUS_[A-Z_]+)`", page)) | for_compose
    services = [service for file in (ONE, MANY) for service in file.ours.values()]
    used = {key for service in services for key in service.get("environment", {})}
    texts = [each.read_text(encoding="utf-8") for each in DEPLOY.rglob("*") if each.is_file()]
    used |= set(re.findall(r"\bTOOLBUS_[A-Z_]+", "\n".join(texts)))
    assert {each for each in used if each.startswith("TOOLBUS_")} <= listed


@FILES
def test_images_of_others_are_pinned_and_ours_is_one(file: ComposeFile) -> None:
    for service in file.services.values():
        if service["image"] != "toolbus":
            assert re.search(r":\d+\.\d+\.\d+$", service["image"])
    (build,) = (service["build"] for service in file.ours.values() if "build" in service)
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    # No registry is asked for an image of the same name.
    assert {service["pull_policy"] for service in file.ours.values()} == {"never"}


def test_page_about_machines_without_a_registry_replaces_each_public_image() -> None:
    defaults = ONE.variables | MANY.variables
    replaced = local_images()
    public = {name for name in defaults if name.endswith("_IMAGE")} - {"TOOLBUS_IMAGE"}
    assert replaced.keys() == public
    builds = (DEPLOY / "local-images/build.sh").read_text(encoding="utf-8")
    for image in replaced.values():
        assert re.search(rf"^(?:build|if is_wanted) {image}\b", builds, re.MULTILINE), image


def test_both_files_start_the_same_toolkits_in_the_same_way() -> None:
    """They differ only in where they connect to, and what they wait for."""

    def toolkits(file: ComposeFile, server: str) -> str:
        found = {name: each for name, each in file.ours.items() if each["command"][0] != "serve"}
        for each in found.values():
            each.get("depends_on", {}).pop(server, None)
        return json.dumps(found).replace(f"ws://{server}:7717", "ws://")

    assert toolkits(ComposeFile(ONE.name), "server") == toolkits(ComposeFile(MANY.name), "balancer")
    for name in ("jaeger", "toolbus"):
        assert ONE.services[name]["image"] == MANY.services[name]["image"]


def test_only_required_services_are_in_the_trusted_network() -> None:
    """In that network Redis requires no password, and X-Forwarded-For is trusted."""
    there = {name for name, each in MANY.services.items() if "nodes" in each.get("networks", ())}
    nodes = {name for name, each in MANY.ours.items() if each["command"] == ["serve"]}
    assert there == {*nodes, "balancer", "redis", "jaeger"}
    assert MANY.content["networks"]["nodes"]["internal"] is True
    for name in nodes:
        variables = MANY.ours[name]["environment"]
        assert variables["TOOLBUS_TRUSTED_PROXIES"] == str(trusted_network())
        assert MANY.ours[name]["networks"] == ["nodes"]
        assert MANY.ours[name]["hostname"] == name
        assert "ports" not in MANY.ours[name]


def test_redis_writes_revocations_and_lives_to_a_volume() -> None:
    redis = MANY.services["redis"]
    assert redis["volumes"] == ["redis:/data"]
    assert {"/data", "yes"} <= set(redis["command"])


def test_image_runs_as_an_unprivileged_user_and_uses_mounted_files() -> None:
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "\nUSER 10001:10001\n" in last_stage
    assert from_dockerfile("ENTRYPOINT") == ["toolbus"]
    default = (ONE.variables | MANY.variables)["TOOLBUS_BASE_IMAGE"]
    assert f"\nARG BASE={default}\n" in DOCKERFILE
    assert DOCKERFILE.count("\nFROM ${BASE}") == DOCKERFILE.count("\nFROM ") == 2
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for source in line.split():
            assert (ROOT / source).exists(), source


def test_only_sections_that_tests_type_have_commands() -> None:
    found = [each for each in re.split(r"^## ", GUIDE, flags=re.MULTILINE) if "```console" in each]
    titles = [each.partition("\n")[0] for each in found]
    assert titles == ["Docker Compose", "Three servers", "Without Docker", "Kubernetes"]


def test_commands_of_the_guide_are_for_the_compose_files() -> None:
    choice, *others = TYPED_FOR_MANY
    assert choice == f"export COMPOSE_FILE={MANY.name}"
    for typed in (*TYPED, *others):
        assert typed.startswith(("docker compose ", "(umask 077; docker compose ", "chmod "))
        if " rm " in typed or " --no-recreate " in typed:
            assert typed.split()[-1] in MANY.ours
