"""`deploy/` as processes: what the compose file starts is started here, and called.

Each of our services runs with the command and the variables of the file. What differs is what a
machine without containers must change: names of services become loopback, ports free ones, mounted
folders temporary ones. Of the image itself only an engine can tell.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command_line import PATIENCE_S, CommandLine, Outcome
from support.missing_parts import not_verified
from support.otlp_collector import collecting, draw
from support.snippets import blocks_of, steps_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "toolbus"}
# Below that heading it is about processes, which test_without_containers.py types.
WITH_DOCKER = (
    (DEPLOY / "README.md").read_text(encoding="utf-8").partition("\n## Without Docker\n")[0]
)
TYPED = [step.command for block in blocks_of(WITH_DOCKER) for step in steps_of(block)]
BY_HAND = "docker compose run --rm toolbus "
IMAGE = "toolbus-under-test"


def from_dockerfile(instruction: str) -> list[str]:
    """The JSON list that an instruction of the Dockerfile ends with; the last one counts."""
    lines = DOCKERFILE.replace("\\\n", " ").splitlines()
    (*_, last) = (line for line in lines if line.startswith(instruction))
    found: list[str] = json.loads(last[last.index("[") :])
    return found


def needs_of(service: dict[str, Any]) -> dict[str, str]:
    return {name: each["condition"] for name, each in service.get("depends_on", {}).items()}


def in_order() -> list[str]:
    """Our services that are started by themselves, each behind those that it needs."""
    left = [name for name, service in OURS.items() if "profiles" not in service]
    found: list[str] = []
    while left:
        ready = [name for name in left if not needs_of(OURS[name]).keys() & set(left)]
        assert ready, f"services wait for each other: {left}"
        found += ready
        left = [name for name in left if name not in ready]
    return found


@dataclass(slots=True)
class Composition:
    """The services, as processes of this machine."""

    folder: Path
    places: dict[str, str]
    """Of an address in the file: the one here."""
    stack: ExitStack = field(default_factory=ExitStack)

    def here(self, service: dict[str, Any], text: str) -> str:
        """Put this machine's addresses and folders into a text of the file."""
        for there, place in self.places.items():
            text = text.replace(there, place)
        for volume in service.get("volumes", ()):
            name, target, *_ = volume.split(":")
            text = re.sub(rf"(?<![\w/]){target}(?=/)", str(self.folder / name), text)
        return text

    def command_line(self, name: str) -> CommandLine:
        """`toolbus` with the variables of a service."""
        service = OURS[name]
        variables = {
            key: self.here(service, value) for key, value in service.get("environment", {}).items()
        }
        return CommandLine(self.folder, variables)

    def start(self, name: str) -> None:
        """Start a service when what it needs is there; wait until it says that it runs."""
        for needed, condition in needs_of(OURS[name]).items():
            if condition == "service_healthy":
                self.check_health(needed)
        service = OURS[name]
        command = [self.here(service, each) for each in service["command"]]
        if "entrypoint" in service:
            self.run_to_end([*service["entrypoint"], *command])
            return
        running = self.stack.enter_context(self.command_line(name).start(*command))
        line = running.line()
        assert line, running.ended().err
        listening = re.match(r"listening on (ws://127\.0\.0\.1:(\d+))", line)
        if listening:
            self.places |= {f"ws://{name}:7717": listening[1], "127.0.0.1:7717": listening[1][5:]}

    def check_health(self, name: str) -> None:
        """Run the health check that the image has, unless the service has its own."""
        assert "healthcheck" not in OURS[name]
        self.run_to_end([self.here(OURS[name], each) for each in from_dockerfile("HEALTHCHECK")])

    def run_to_end(self, command: Sequence[str]) -> None:
        assert command[0] == "python"
        done = subprocess.run(
            [sys.executable, *command[1:]], capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr

    def type(self, typed: str) -> Outcome:
        """Run what a person types behind `docker compose run`."""
        assert typed.startswith(BY_HAND)
        arguments = shlex.split(typed.removeprefix(BY_HAND))
        service = OURS["toolbus"]
        return self.command_line("toolbus").run(*(self.here(service, each) for each in arguments))


@contextmanager
def composed(folder: Path, otlp_url: str) -> Iterator[Composition]:
    """Make the key as the README says, and start everything of ours."""
    for volume in COMPOSE["volumes"]:
        (folder / volume).mkdir()
    # The server takes a free port and says which.
    places = {"http://jaeger:4318": otlp_url, "0.0.0.0": "127.0.0.1", "7717": "0"}
    composition = Composition(folder, places)
    key, *_ = (typed for typed in TYPED if " key create " in typed)
    made = composition.type(key)
    assert made.code == 0, made.err
    with composition.stack:
        for name in in_order():
            composition.start(name)
            if name == "server":
                del places["7717"]
                places |= composition.places
        yield composition


def test_services_of_the_compose_file_answer_calls_that_are_seen_as_trees(tmp_path: Path) -> None:
    with collecting() as collector, composed(tmp_path, collector.endpoint) as composition:
        typed = [each for each in TYPED if each.startswith(BY_HAND) and " key " not in each]
        outcomes = {each.removeprefix(BY_HAND): composition.type(each) for each in typed}
        traces = {span.trace_id for span in list(collector.spans) if span.name == "sql.query"}
        (trace_id,) = traces
        tree = draw(collector.wait_for(trace_id, 4))

    assert {command: outcome.code for command, outcome in outcomes.items()} == dict.fromkeys(
        outcomes, 0
    )
    table, clock, query = (outcome.out for outcome in outcomes.values())
    rows = [re.split(r"\s{2,}", line) for line in table.splitlines()[1:]]
    assert [(row[0], row[3]) for row in rows] == [("clock", "1"), ("sql", "2")]
    assert re.match(r"\d{4}-\d\d-\d\dT", clock)
    assert len(json.loads(query)["rows"]) == 3
    assert tree == [
        "CLIENT sql.query @toolbus-cli",
        "  SERVER sql.query @toolbus-server",
        "    SERVER sql.query @sql",
        "      INTERNAL execute_tool query @sql",
    ]


def test_service_that_is_not_healthy_fails_the_check_of_the_image() -> None:
    command = from_dockerfile("HEALTHCHECK")
    gone = [each.replace("127.0.0.1:7717", "127.0.0.1:1") for each in command]
    assert gone != command
    done = subprocess.run([sys.executable, *gone[1:]], capture_output=True, timeout=PATIENCE_S)
    assert done.returncode == 1


# What the files promise


@pytest.mark.parametrize("name", OURS)
def test_service_can_write_nowhere_but_where_it_must_and_gains_no_rights(name: str) -> None:
    service = OURS[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in service  # the image's own, see below
    writable = {each for each in service.get("volumes", ()) if not each.endswith(":ro")}
    assert writable <= {"toolbus": {"keys:/keys"}, "inventory": {"data:/data"}}.get(name, set())


def test_ports_are_open_to_this_machine_alone() -> None:
    for service in SERVICES.values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), port


def test_no_secret_stands_in_the_file_and_services_mint_their_own_tokens() -> None:
    for name, service in OURS.items():
        variables = service.get("environment", {})
        assert not {"TOOLBUS_TOKEN", "TOOLBUS_TOKEN_FILE"} & variables.keys()
        if service["command"][0] == "host":
            assert variables["TOOLBUS_KEYS"].startswith("/keys/"), name
            assert variables["TOOLBUS_NAME"], name
            assert needs_of(service)["server"] == "service_healthy"
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    assert not re.search(r"[A-Za-z0-9_-]{40,}", text)


def test_variables_are_those_that_the_readme_lists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(TOOLBUS_[A-Z_]+)`", readme))
    used = {key for service in OURS.values() for key in service.get("environment", {})}
    used |= set(re.findall(r"TOOLBUS_[A-Z_]+", DOCKERFILE))
    used |= set(re.findall(r"TOOLBUS_[A-Z_]+", (DEPLOY / "README.md").read_text(encoding="utf-8")))
    assert {each for each in used if each.startswith("TOOLBUS_")} <= listed


def test_images_of_others_are_pinned_and_ours_is_one() -> None:
    for service in SERVICES.values():
        if service["image"] != "toolbus":
            assert re.search(r":\d+\.\d+\.\d+$", service["image"])
    assert len({json.dumps(service["build"]) for service in OURS.values()}) == 1
    build = OURS["server"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")


def test_image_runs_as_nobody_in_particular_and_takes_what_is_there() -> None:
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "\nUSER 10001:10001\n" in last_stage
    assert from_dockerfile("ENTRYPOINT") == ["toolbus"]
    assert DOCKERFILE.count("\nFROM python:3.12-slim") == 2
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for source in line.split():
            assert (ROOT / source).exists(), source
            ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8")
            assert f"!{source}\n" in ignored


def test_documents_lead_to_what_is_there() -> None:
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert (DEPLOY / target).exists(), target
    for typed in TYPED:
        assert typed.startswith("docker compose ")


# The image


def why_no_engine() -> str | None:
    """Ask the engine itself: a client program may lie there without one."""
    try:
        asked = subprocess.run(
            ["docker", "version"], capture_output=True, text=True, timeout=PATIENCE_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no Docker engine answers: {type(error).__name__}"
    return None if asked.returncode == 0 else "no Docker engine answers"


@pytest.mark.timeout(900)
def test_image_is_built_and_runs_without_rights_on_a_read_only_disk() -> None:
    why = why_no_engine()
    if why is not None:
        not_verified("the container image of deploy/", why, ci_has_it=False)
    build = ["docker", "build", "--quiet", "--file", "deploy/Dockerfile", "--tag", IMAGE, "."]
    subprocess.run(build, cwd=ROOT, check=True, timeout=600)
    run = ["docker", "run", "--rm", "--read-only", "--cap-drop", "ALL"]
    asked = "import os; print(os.getuid())"
    who = subprocess.run(
        [*run, "--entrypoint", "python", IMAGE, "-c", asked],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert who.stdout == "10001\n"
    for command in (["serve", "--help"], ["host", "--help"], ["trace", "--help"]):
        subprocess.run([*run, IMAGE, *command], check=True, timeout=PATIENCE_S)
