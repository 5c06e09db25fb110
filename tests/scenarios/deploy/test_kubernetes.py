"""`deploy/k8s` without a cluster: the manifests fit together, and their pods run as processes.

The files of the generators are made as docs/guides/deploy.md shows it. What pods would run is run
with their variables and mounted files, beside an API server that publishes keys, and with tokens as
the kubelet writes them; only a cluster can test the image, the network policies and how a pod
ends.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from redis import Redis

from support.clients.certificates import Pki, make_pki
from support.deploy.manifests import (
    K8S,
    KUSTOMIZATION,
    MANIFESTS,
    OURS,
    PODS,
    SERVER,
    Pods,
    generated_in,
    of_kind,
    ports_of,
    probes_of,
    selected,
    volume_at,
)
from support.documents.snippets import blocks_of, steps_of
from support.documents.terminals import Terminals
from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine
from support.pytest_plugins.missing_parts import not_verified
from support.redis.blocking import blocking_redis
from toolbus import ApiScope, Key, KeyRing, ParticipantToken
from toolbus.auth.tokens import TokenRefused

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/guides/deploy.md").read_text(encoding="utf-8")
SECTION = GUIDE.partition("\n## Kubernetes\n")[2].partition("\n## ")[0]
OLDEST = "1.29"
"""The first version of Kubernetes that the manifests are for."""
END_S = 5
"""What a process may need after its drain: to close, and to send the last spans."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the secrets in it, made as the guide shows, word for word."""
    folder = tmp_path_factory.mktemp("k8s")
    shutil.copytree(K8S, folder, dirs_exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    clean = {name: text for name, text in os.environ.items() if not name.startswith("TOOLBUS_")}
    (block,) = (each for each in blocks_of(SECTION) if "key create" in each.text)
    with Terminals(folder, {**clean, "PATH": path}) as terminals:
        terminals.type(steps_of(block))
    return folder


# Each manifest


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_manifests_are_valid_for_kubernetes(version: str) -> None:
    for manifest in MANIFESTS:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    wrong = yaml.safe_load(yaml.safe_dump(of_kind("Deployment")["clock"]))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 30
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


def test_kubectl_builds_the_whole_with_its_secrets(made: Path) -> None:
    program = shutil.which("kubectl")
    if program is None:
        not_verified("the kustomization of deploy/k8s", "no kubectl is here", ci_has_it=False)
    done = subprocess.run(
        [program, "kustomize", str(made)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    built = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    secrets, maps = generated_in(made, "secretGenerator"), generated_in(made, "configMapGenerator")
    expected = {(each["kind"], each["metadata"]["name"]) for each in MANIFESTS}
    expected |= {("Secret", name) for name in secrets} | {("ConfigMap", name) for name in maps}
    assert built.keys() == expected
    for (kind, name), manifest in built.items():
        kubernetes_validate.validate(manifest, OLDEST, strict=True)
        if kind not in ("Namespace", "ClusterRoleBinding"):
            assert manifest["metadata"]["namespace"] == KUSTOMIZATION["namespace"]
        if kind == "ConfigMap":
            assert manifest["data"] == maps[name]
        if kind == "Secret":
            data = {key: base64.b64decode(text).decode() for key, text in manifest["data"].items()}
            assert data == secrets[name]
    for name in OURS:
        (container,) = built["Deployment", name]["spec"]["template"]["spec"]["containers"]
        assert container["image"] == f"toolbus:{version_of_project()}"


def version_of_project() -> str:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    version: str = found["project"]["version"]
    return version


def test_image_that_is_built_is_the_one_that_is_started() -> None:
    (image,) = KUSTOMIZATION["images"]
    assert image["newTag"] == version_of_project()
    assert f"--tag {image['name']}:{image['newTag']} " in SECTION
    for name, pod in PODS.items():
        if name not in OURS:
            assert re.search(r":\d+\.\d+\.\d+$", pod.container["image"])


@pytest.mark.parametrize("name", PODS)
def test_pod_has_only_the_rights_that_it_needs(name: str) -> None:
    """As the namespace requires it of every pod."""
    (space,) = of_kind("Namespace").values()
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    pod = PODS[name]
    assert pod.spec["automountServiceAccountToken"] is False
    assert pod.spec["enableServiceLinks"] is False  # else a service `toolbus` sets TOOLBUS_PORT
    who = pod.spec["securityContext"]
    assert who["runAsNonRoot"] is True
    assert who["seccompProfile"] == {"type": "RuntimeDefault"}
    if name in OURS:
        assert (who["runAsUser"], who["fsGroup"]) == (10001, 10001)  # the image's own
    rights = pod.container["securityContext"]
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert pod.container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in pod.container["resources"]["limits"]


# Together


def test_selectors_find_the_pods_that_they_are_for() -> None:
    for name, each in of_kind("Deployment").items():
        assert selected(each["spec"]["selector"]["matchLabels"]) == [name]
        for spread in PODS[name].spec.get("topologySpreadConstraints", ()):
            assert selected(spread["labelSelector"]["matchLabels"]) == [name]
    services = of_kind("Service")
    assert selected(services["toolbus"]["spec"]["selector"]) == ["toolbus-server"]
    assert selected(services["redis"]["spec"]["selector"]) == ["redis"]
    for name, each in of_kind("PodDisruptionBudget").items():
        assert selected(each["spec"]["selector"]["matchLabels"]) == [name]
        assert each["spec"]["maxUnavailable"] < of_kind("Deployment")[name]["spec"]["replicas"]
    for name, each in of_kind("NetworkPolicy").items():
        assert selected(each["spec"]["podSelector"]["matchLabels"]) == [name]
    (rule,) = of_kind("NetworkPolicy")["redis"]["spec"]["ingress"]
    (others,) = rule["from"]
    assert selected(others["podSelector"]["matchLabels"]) == ["toolbus-server"]


def test_ports_are_those_that_are_served() -> None:
    served = {name: ports_of(pod) for name, pod in PODS.items()}
    assert served["toolbus-server"] == {"websocket": int(SERVER.variable("TOOLBUS_LISTEN_PORT"))}
    for each in of_kind("Service").values():
        for port in each["spec"]["ports"]:
            (name,) = selected(each["spec"]["selector"])
            assert port["targetPort"] in served[name]
    for name, each in of_kind("NetworkPolicy").items():
        for rule in each["spec"]["ingress"]:
            assert {port["port"] for port in rule["ports"]} <= served[name].keys()
    for pod in PODS.values():
        for probe in probes_of(pod).values():
            (asked,) = (each for kind, each in probe.items() if kind in ("httpGet", "tcpSocket"))
            assert asked["port"] in served[pod.name]


def test_addresses_are_those_of_services(made: Path) -> None:
    url = urlsplit(PODS["clock"].variable("TOOLBUS_URL"))
    secret = urlsplit(generated_in(made, "secretGenerator")["toolbus-redis"]["TOOLBUS_REDIS_URL"])
    for place in (url, secret):
        service = of_kind("Service")[str(place.hostname)]
        assert place.port in {port["port"] for port in service["spec"]["ports"]}


def test_secrets_of_pods_are_created_with_what_they_read(made: Path) -> None:
    secrets = generated_in(made, "secretGenerator")
    for pod in PODS.values():
        for variable in pod.variables.values():
            named = variable.get("valueFrom", {}).get("secretKeyRef")
            assert named is None or named["key"] in secrets[named["name"]]


def test_nothing_in_the_cluster_can_make_a_token(made: Path) -> None:
    assert generated_in(made, "secretGenerator").keys() == {"toolbus-redis"}
    for pod in OURS.values():
        assert not [each for each in pod.spec["volumes"] if "secret" in each]
    (key,) = KeyRing.load(made / "public.toml")
    assert not key.can_sign
    assert next(iter(KeyRing.load(made / "keys.toml"))).can_sign
    with (ROOT / ".gitignore").open(encoding="utf-8") as ignored:
        lines = ignored.read().splitlines()
    assert {"keys.toml", "/deploy/k8s/public.toml", "/deploy/k8s/redis.env"} <= set(lines)


# Service accounts


def test_pods_have_the_files_that_their_settings_name(made: Path) -> None:
    maps = generated_in(made, "configMapGenerator")
    folder, _, file = SERVER.variable("TOOLBUS_KEYS").rpartition("/")
    assert file in maps[volume_at(SERVER, folder)["name"]]
    (issuer,) = KeyRing.load(made / "public.toml").issuers.values()
    token, authority = volume_at(SERVER, "/cluster")["sources"]
    # Without an audience it is for the API server.
    assert token["serviceAccountToken"] == {"expirationSeconds": 3600, "path": "token"}
    assert authority["configMap"]["name"] == "kube-root-ca.crt"  # in each namespace
    assert (issuer.token_file, issuer.ca) == ("/cluster/token", "/cluster/ca.crt")
    clock = PODS["clock"]
    (own,) = volume_at(clock, "/token")["sources"]
    assert own["serviceAccountToken"]["audience"] == issuer.audience
    named = f"/token/{own['serviceAccountToken']['path']}"
    assert clock.variable("TOOLBUS_TOKEN_FILE") == named


def test_each_pod_has_an_account_and_servers_may_read_the_keys_of_the_cluster() -> None:
    accounts = of_kind("ServiceAccount")
    assert {pod.spec["serviceAccountName"] for pod in OURS.values()} == accounts.keys()
    for account in accounts.values():
        assert account["automountServiceAccountToken"] is False
    (binding,) = of_kind("ClusterRoleBinding").values()
    assert binding["roleRef"]["name"] == "system:service-account-issuer-discovery"
    (reader,) = binding["subjects"]
    assert (reader["kind"], reader["name"]) == ("ServiceAccount", SERVER.spec["serviceAccountName"])
    assert reader["namespace"] == KUSTOMIZATION["namespace"]


CLUSTER = Key.generate(
    kid="cluster", iss=next(iter(KeyRing.load(K8S / "cluster.toml").issuers)), alg="RS256"
)
KEY_SET = json.dumps({"keys": [CLUSTER.public_jwk()]}).encode()
ALLOWED = f"{KUSTOMIZATION['namespace']}:clock"


def token_of(account: str, audience: str = "toolbus", life_s: int = 3600) -> str:
    """A token as the kubelet writes it for a pod of a service account, `NAMESPACE:NAME`."""
    namespace, _, name = account.partition(":")
    now = int(time.time())
    claims = {
        "aud": [audience],
        "exp": now + life_s,
        "iat": now,
        "iss": CLUSTER.iss,
        "jti": "f2b1c7a0-3f6e-4a36-9d2b-0f8c6b0a6c11",
        "kubernetes.io": {
            "namespace": namespace,
            "node": {"name": "worker-1", "uid": "7b2f1a52-93f5-4f57-8a4a-1a6de5a0f2aa"},
            "pod": {"name": f"{name}-7c5b-x2x9k", "uid": "9e1ad0a4-30f5-4d57-9ad8-3d1a6a7b1f5e"},
            "serviceaccount": {"name": name, "uid": "1a5df5ab-4de4-4f3f-8f0e-4f3f8f0e1a5d"},
        },
        "nbf": now,
        "sub": f"system:serviceaccount:{account}",
    }
    return CLUSTER.sign(json.dumps(claims).encode())


def test_rule_admits_the_service_account_as_the_host(made: Path) -> None:
    ring = KeyRing.load(made / "public.toml")
    ring = KeyRing(ring, [each.with_set(KEY_SET) for each in ring.issuers.values()])
    assert ring.aliases() == {CLUSTER.iss: "cluster", "people": "people"}
    token = ParticipantToken.from_jwt(token_of(ALLOWED), ring)
    assert (token.name, token.room, token.role) == ("clock", ("main",), "user")
    assert token.api == ApiScope.host_default()
    for account, audience, reason in (
        ("other:clock", "toolbus", "no_rule"),
        (f"{ALLOWED}-2", "toolbus", "no_rule"),
        (ALLOWED, "https://kubernetes.default.svc", "wrong_audience"),
    ):
        with pytest.raises(TokenRefused) as refused:
            ParticipantToken.from_jwt(token_of(account, audience), ring)
        assert refused.value.reason == reason


def test_a_pod_that_ends_has_time_for_all_that_it_does() -> None:
    for pod in OURS.values():
        before = pod.container.get("lifecycle", {}).get("preStop")
        waits_s = 0 if before is None else int(before["exec"]["command"][-1])
        drain_s = int(pod.variable("TOOLBUS_DRAIN"))
        assert pod.spec["terminationGracePeriodSeconds"] >= waits_s + drain_s + END_S, pod.name
    assert SERVER.container["lifecycle"]["preStop"] == {"exec": {"command": ["sleep", "5"]}}
    # By then every balancer knows that a node is not ready any more.
    ready = SERVER.container["readinessProbe"]
    assert ready["periodSeconds"] * ready["failureThreshold"] <= 5


def test_servers_are_replaced_one_after_the_other() -> None:
    spec = of_kind("Deployment")["toolbus-server"]["spec"]
    assert spec["replicas"] == 3
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


# As processes


class ApiServer(BaseHTTPRequestHandler):
    """The API server of a cluster: its keys are for those that have a token of its own."""

    def do_GET(self) -> None:
        is_known = self.headers["Authorization"] == f"Bearer {token_of_server()}"
        self.send_response(200 if (self.path, is_known) == ("/openid/v1/jwks", True) else 403)
        self.end_headers()
        self.wfile.write(KEY_SET)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@cache
def token_of_server() -> str:
    return token_of(
        f"{KUSTOMIZATION['namespace']}:toolbus-server", "https://kubernetes.default.svc"
    )


@contextmanager
def api_server(pki: Pki) -> Iterator[str]:
    """Run it, and yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), ApiServer) as server:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pki.cert, pki.key)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_commands_of_the_pods_form_one_bus_that_answers_the_call_of_the_readme(
    tmp_path: Path, made: Path
) -> None:
    secrets, pki = generated_in(made, "secretGenerator"), make_pki(tmp_path / "pki")
    password = secrets["toolbus-redis"]["REDIS_PASSWORD"]
    with blocking_redis(password) as redis, api_server(pki) as api:
        places = {
            "0.0.0.0": "127.0.0.1",
            "redis:6379": redis,
            "https://kubernetes.default.svc/": f"https://{api}/",
            **{f"/{name}/": f"{tmp_path}/{name}/" for name in ("keys", "cluster", "token")},
        }
        pods = Pods(tmp_path, secrets, places)
        mount(pods, made, pki)
        with pods.stack:
            start_and_call(pods, made)
        with Redis.from_url(f"redis://:{password}@{redis}/0") as client:
            nodes = client.zrange("toolbus:nodes:leases", 0, -1)
    names = sorted(each.decode().split(" ")[0] for each in nodes)
    assert names == ["toolbus-server-a", "toolbus-server-b"]


def mount(pods: Pods, made: Path, pki: Pki) -> None:
    """Write the files that Kubernetes mounts into the pods."""
    for name, text in {
        "keys/public.toml": pods.here((made / "public.toml").read_text()),
        "cluster/token": token_of_server(),
        "cluster/ca.crt": pki.authority.read_text(),
        "token/token": token_of(ALLOWED),
    }.items():
        path = pods.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def start_and_call(pods: Pods, made: Path) -> None:
    """Host at one server and call at another."""
    urls = []
    for name in ("toolbus-server-a", "toolbus-server-b"):
        line = pods.start(SERVER, name)
        urls.append(line.removeprefix("listening on ").strip())
        for probe in probes_of(SERVER).values():
            at = urls[-1].replace("ws://", "http://") + probe["httpGet"]["path"]
            with urllib.request.urlopen(at, timeout=10) as answer:
                assert answer.status == 200
    pods.places["toolbus:7717"] = urlsplit(urls[0]).netloc
    clock = PODS["clock"]
    assert pods.start(clock, "clock-a") == "hosting clock in room main as cluster/clock\n"
    (typed,) = (
        step.command
        for block in blocks_of(SECTION)
        for step in steps_of(block)
        if " toolbus call " in step.command
    )
    keys, *command = typed.split()
    assert keys == "TOOLBUS_KEYS=keys.toml"
    caller = CommandLine(made, {"TOOLBUS_KEYS": "keys.toml", "TOOLBUS_URL": urls[1]})
    outcome = caller.run(*command[1:])
    assert outcome.code == 0, outcome.err
    assert re.match(r"\d{4}-\d\d-\d\dT", outcome.out)
    inside = CommandLine(
        pods.folder,
        {name: pods.here(clock.variable(name)) for name in ("TOOLBUS_URL", "TOOLBUS_TOKEN_FILE")},
    )
    found = {each["check"]: each for each in inside.value_here("doctor", "--json")}
    assert {each["status"] for each in found.values()} == {"ok"}, found
    assert found["renewal"]["found"].endswith("a newer one, which the kubelet writes")
    assert f"the key set of {CLUSTER.iss} is " in found["ready"]["found"]
