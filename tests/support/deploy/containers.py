"""The compose files of `deploy/` in real containers, under names and ports of the test's own.

Commands are typed as the guides show them. Only variables differ: the project's name, the name of
the image that is built, free ports, and images that this machine has where no registry is.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from support.deploy.compose import DEPLOY, ComposeFile
from support.deploy.guide import local_images
from support.processes.launch import clean_environment
from support.pytest_plugins.missing_parts import not_verified
from support.redis.docker_engine import require_engine, require_image, why_no_image
from support.redis.server import free_port

__all__ = ["Project", "image_variables", "private_clone", "project"]

_TIMEOUT_S = 300
_ROOT = DEPLOY.parent
_IN_IMAGE = ("sdk", "room_server", "toolkits", "deploy")


@dataclass(frozen=True, slots=True)
class Project:
    """A folder `deploy` in which commands are typed, and their variables."""

    folder: Path
    name: str
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def image(self) -> str:
        """The image that the compose files build and run."""
        return self.variables["TOOLBUS_IMAGE"]

    @property
    def port(self) -> str:
        """The port on this machine of the server or the balancer."""
        return self.variables["TOOLBUS_PUBLISHED_PORT"]

    def type(self, command: str, **variables: str) -> str:
        """Run a command in a shell, and return what it prints on stdout; it must exit with 0."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env={**clean_environment(), **self.variables, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def terminal(self) -> Project:
        """Return the same, with variables of its own."""
        return replace(self, variables=dict(self.variables))

    def type_until(self, command: str, is_good: Callable[[str], bool], **variables: str) -> str:
        """Type a command again until its output is good."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not is_good(printed := self.type(command, **variables)):
            assert time.monotonic() < deadline, f"$ {command}\n{printed}"
        return printed

    def export(self, command: str) -> None:
        """Keep the variable of an `export` for the commands after it."""
        name, _, value = command.removeprefix("export ").partition("=")
        self.variables[name] = value

    def remove(self) -> None:
        """Remove all of it, and the image."""
        self.down()
        self.type(f"docker image rm --force {self.image} 2>&1")

    def down(self) -> None:
        """Remove containers, volumes and networks of both files."""
        for file in ("compose.yaml", "compose.nodes.yaml"):
            down = "docker compose --profile '*' down --volumes --timeout 1 --remove-orphans"
            self.type(down, COMPOSE_FILE=file)


def image_variables(what: str) -> dict[str, str]:
    """Return the variables with which the images of others are here: none if they can be pulled.

    Args:
        what: What is not verified if there is no engine, or an image is missing.
    """
    require_engine(what)
    replaced = local_images()
    if all(why_no_image(image) is None for image in replaced.values()):
        return replaced
    files = [ComposeFile(name) for name in ("compose.yaml", "compose.nodes.yaml")]
    for name, image in {**files[0].variables, **files[1].variables}.items():
        if name in replaced:
            require_image(what, image)
    return {}


@contextmanager
def project(folder: Path, what: str) -> Iterator[Project]:
    """Provide a project whose containers, volumes and image are removed at the end.

    Args:
        folder: A folder `deploy`.
        what: What is not verified if this machine cannot run it.
    """
    images = image_variables(what)
    asked = subprocess.run(["docker", "compose", "version", "--short"], capture_output=True)
    if asked.returncode != 0:
        not_verified(what, "docker has no plugin compose", ci_has_it="DOCKER_HOST" in os.environ)
    name = f"toolbus-test-{secrets.token_hex(3)}"
    ports = ("TOOLBUS_PUBLISHED_PORT", "TOOLBUS_PUBLISHED_JAEGER_PORT")
    variables = {
        "COMPOSE_PROJECT_NAME": name,
        "TOOLBUS_IMAGE": name,
        **{port: str(free_port()) for port in ports},
        **images,
    }
    made = Project(folder, name, variables)
    try:
        yield made
    finally:
        made.remove()


def private_clone(folder: Path) -> Path:
    """Copy what the image is built from into a folder; only its owner can read the copy."""
    for name in _IN_IMAGE:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".dockerignore"):
        shutil.copy(_ROOT / name, folder / name)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode & 0o700)
    return folder
