"""The manifests of `deploy/k8s`: their content, and what their pods would run as processes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from support.processes.command_line import CommandLine

K8S = Path(__file__).parents[3] / "deploy" / "k8s"


class Pod(NamedTuple):
    """The pod template of a deployment; it has one container."""

    name: str
    labels: dict[str, str]
    spec: dict[str, Any]

    @property
    def container(self) -> dict[str, Any]:
        (found,) = self.spec["containers"]
        assert isinstance(found, dict)
        return found

    @property
    def variables(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self.container.get("env", ())}

    def variable(self, name: str) -> str:
        value = self.variables[name]["value"]
        assert isinstance(value, str)  # a number would be refused
        return value


def content(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The kustomization, and the manifests that it names."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    texts = [(folder / name).read_text(encoding="utf-8") for name in kustomization["resources"]]
    return kustomization, [each for text in texts for each in yaml.safe_load_all(text)]


KUSTOMIZATION, MANIFESTS = content(K8S)


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in MANIFESTS if each["kind"] == kind}


def _pod_of(name: str, deployment: dict[str, Any]) -> Pod:
    template = deployment["spec"]["template"]
    return Pod(name, template["metadata"]["labels"], template["spec"])


PODS = {name: _pod_of(name, each) for name, each in of_kind("Deployment").items()}
OURS = {name: pod for name, pod in PODS.items() if pod.container["image"] == "toolbus"}
SERVER = PODS["toolbus-server"]


def selected(selector: Mapping[str, str]) -> list[str]:
    """The deployments whose pods have these labels."""
    return [name for name, pod in PODS.items() if selector.items() <= pod.labels.items()]


def generated_in(folder: Path, generator: str) -> dict[str, dict[str, str]]:
    """What a generator of secrets or config maps makes of the files."""
    made: dict[str, dict[str, str]] = {}
    for each in KUSTOMIZATION[generator]:
        values = {name: (folder / name).read_text() for name in each.get("files", ())}
        for name in each.get("envs", ()):
            lines = (folder / name).read_text().splitlines()
            values |= dict(line.split("=", 1) for line in lines)
        made[each["name"]] = values
    return made


def ports_of(pod: Pod) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in pod.container.get("ports", ())}


def probes_of(pod: Pod) -> dict[str, dict[str, Any]]:
    return {name: each for name, each in pod.container.items() if name.endswith("Probe")}


def volume_at(pod: Pod, path: str) -> dict[str, Any]:
    """The source of the volume that is mounted at a path, which only the image's group can read."""
    (mount,) = (each for each in pod.container["volumeMounts"] if each["mountPath"] == path)
    assert mount["readOnly"] is True
    (volume,) = (each for each in pod.spec["volumes"] if each["name"] == mount["name"])
    (source,) = (found for kind, found in volume.items() if kind != "name")
    assert source["defaultMode"] == 0o440
    assert isinstance(source, dict)
    return source


@dataclass(slots=True)
class Pods:
    """What pods would run, with the variables that they would have."""

    folder: Path
    secrets: Mapping[str, Mapping[str, str]]
    places: dict[str, str]
    """This machine's address or folder for each one in the manifests."""
    stack: ExitStack = field(default_factory=ExitStack)

    def start(self, pod: Pod, name: str) -> str:
        """Start one under a name, and return the first line that it prints."""
        variables = {key: self._value(each, name) for key, each in pod.variables.items()}
        if pod is SERVER:
            variables["TOOLBUS_LISTEN_PORT"] = "0"
        command = CommandLine(self.folder, variables)
        running = self.stack.enter_context(command.start(*pod.container["args"]))
        line = running.line()
        assert line, running.ended().err
        return line

    def _value(self, variable: Mapping[str, Any], name: str) -> str:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            assert source["fieldRef"] == {"fieldPath": "metadata.name"}
            return name
        if "secretKeyRef" in source:
            secret = source["secretKeyRef"]
            return self.here(self.secrets[secret["name"]][secret["key"]])
        return self.here(variable["value"])

    def here(self, text: str) -> str:
        """Replace what is of the cluster."""
        for there, place in self.places.items():
            text = text.replace(there, place)
        return text
