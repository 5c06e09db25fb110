"""Commands that talk to a service: containers, clusters, GitHub, machines far away.

What they show is reading, if their manual says so and if a word of the line cannot choose whom they
ask. A file in the program's own cache does not count as a change.

Source: `--help` of docker 28.2 and kubectl 1.32; the manual of gh 2.60; the manual pages of curl,
wget, OpenSSH and rsync.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from toolbus_toolkits.shell.commands.table import (
    RUNS,
    SETTINGS,
    Arguments,
    Command,
    Effect,
    asking,
    renamed,
    shows,
    takes_words,
    with_flags,
    with_subcommands,
)
from toolbus_toolkits.shell.reading import SimpleCommand

__all__ = ["ROWS", "SPECIAL"]

_ELSEWHERE = "may ask another machine"

_DOCKER_TOP = Command(
    "docker",
    "-D --debug -v --version --help",
    valued="-l --log-level",
    asks={"-H --host -c --context --config --tls --tlsverify": _ELSEWHERE},
    permutes=False,
)
# A container has the variables of its process: a template may show other parts of it.
_PART = (
    r"\.(?:Created|Id|Image|Mounts|Name|NetworkSettings|RestartCount|State|Config\.(?:Cmd|Image"
    r"|Labels|User|WorkingDir))(?:\.\w+)*"
)
# Within a `range` a name stands below that part; `$` alone is the whole container.
_TEMPLATE = re.compile(
    rf"(?:[^{{}}]|\{{\{{ ?(?:json )?{_PART} ?\}}\}}"
    rf"|\{{\{{ ?range (?:\$[a-z]\w*, ?\$[a-z]\w* := )?{_PART} ?\}}\}}"
    r"(?:[^{}]|\{\{ ?(?:json )?(?:\.|\$[a-z])[\w.]* ?\}\})*\{\{ ?end ?\}\})*"
)


def _container(arguments: Arguments) -> Effect:
    templates = arguments.values("-f --format")[-1:]
    if not any(_TEMPLATE.fullmatch(word.value or "{") for word in templates):
        return Effect(why="it may show the variables of a container")
    return Effect(read_only=True, reads=())


_DOCKER_ROWS = with_flags(
    "--help",
    shows(
        "docker ps, docker container ls, docker container ps, docker container list",
        "-a --all -l --latest --no-trunc -q --quiet -s --size",
        valued="-f --filter --format -n --last",
    ),
    shows(
        "docker images, docker image ls, docker image list",
        "-a --all --digests --no-trunc -q --quiet --tree",
        valued="-f --filter --format",
    ),
    takes_words(
        "docker inspect, docker container inspect",
        "-s --size -v --verbose",
        valued="-f --format --type --platform",
        effect=_container,
    ),
    shows(
        "docker image inspect, docker volume inspect, docker network inspect,"
        " docker context inspect",
        "-s --size -v --verbose",
        valued="-f --format --type --platform",
    ),
    shows(
        "docker logs, docker container logs",
        "--details -f --follow -t --timestamps",
        valued="--since --until -n --tail",
    ),
    takes_words(
        "docker top, docker container top",
        at_most=1,
        beyond="options of `ps` may show the variables of a container",
    ),
    shows(
        "docker stats, docker container stats",
        "-a --all --no-stream --no-trunc",
        valued="--format",
    ),
    shows(
        "docker version, docker info, docker port, docker diff, docker container port,"
        " docker container diff, docker system info, docker context show, docker compose version",
        valued="-f --format",
    ),
    shows("docker system df", "-v --verbose", valued="--format"),
    shows(
        "docker volume ls, docker network ls, docker context ls",
        "-q --quiet --no-trunc",
        valued="-f --filter --format",
    ),
    shows(
        "docker history, docker image history",
        "-H --human --no-trunc -q --quiet",
        valued="--format --platform",
    ),
)
_DOCKER_WHYS = {
    "docker build": "it builds an image, and runs what the Dockerfile says",
    "docker compose": "it reads the variables and the projects that its file names, or starts"
    " containers",
    "docker compose down": "it ends and removes containers",
    "docker container exec, docker container run, docker exec, docker run": RUNS,
    "docker cp": "it copies files into or out of a container",
    "docker kill, docker stop": "it ends containers",
    "docker context use, docker login": SETTINGS,
    "docker pull": "it loads an image from another machine",
    "docker push": "it sends an image to another machine",
    "docker restart": "it ends and starts containers",
    "docker rm": "it removes containers",
    "docker rmi": "it removes images",
    "docker system prune": "it removes containers, networks and images that are not used",
    "docker volume rm, docker volume prune": "it removes what is stored in volumes",
}

_PODMAN_WHYS = {
    # Without root, podman makes its storage and keeps a process of its own, also to list.
    "podman": "it may set up its storage, and starts a process that stays",
    "podman exec, podman run": RUNS,
    "podman container exec, podman container run": RUNS,
}

_KUBECTL_OPTIONS = "-n --namespace --context --cluster --request-timeout"
_KUBECTL_ASKS = {
    "--kubeconfig --user --as --as-group --as-uid --token --username --password -s --server"
    " --certificate-authority --client-certificate --client-key --tls-server-name"
    " --insecure-skip-tls-verify --cache-dir --profile --profile-output --kuberc": _ELSEWHERE
    + " or write a file",
}
_KUBECTL_TOP = Command(
    "kubectl", "--help -h", valued=_KUBECTL_OPTIONS, asks=_KUBECTL_ASKS, permutes=False
)
# Secrets are left out, and `all` may have resources of any kind.
_RESOURCES = frozenset(
    "po pod pods svc service services deploy deployment deployments rs replicaset replicasets"
    " sts statefulset statefulsets ds daemonset daemonsets job jobs cj cronjob cronjobs"
    " no node nodes ns namespace namespaces ing ingress ingresses ep endpoints endpointslices"
    " pv persistentvolume persistentvolumes pvc persistentvolumeclaim persistentvolumeclaims"
    " sc storageclass storageclasses hpa horizontalpodautoscaler horizontalpodautoscalers"
    " ev event events sa serviceaccount serviceaccounts netpol networkpolicy networkpolicies"
    " crd crds customresourcedefinition customresourcedefinitions quota resourcequotas limitranges"
    " pdb poddisruptionbudget poddisruptionbudgets rc replicationcontrollers all".split()
)


def _resources(arguments: Arguments) -> Effect:
    for word in arguments.values("-o --output"):
        # `-o go-template-file=.env` shows what is no template.
        if word.value is None or "-file" in word.value:
            return Effect(why=f"`{word.source}` reads a file")
    for position, word in enumerate(arguments.operands):
        text = word.value
        if text is None or word.is_pattern:
            return Effect(why=f"`{word.source}` may be a secret")
        if position > 0 and "/" not in text:
            continue
        kinds = {part.partition("/")[0].lower() for part in text.split(",")}
        if not kinds <= _RESOURCES:
            return Effect(why=f"`{word.source}` may be a secret")
    return Effect(read_only=True, reads=())


def _kubectl(
    name: str,
    flags: str = "",
    *,
    valued: str = "",
    effect: Callable[[Arguments], Effect] | None = None,
) -> Command:
    return takes_words(
        f"kubectl {name}",
        f"-h --help {flags}",
        valued=f"{_KUBECTL_OPTIONS} {valued}",
        asks=_KUBECTL_ASKS,
        effect=effect,
    )


_KUBECTL_ROWS = (
    _kubectl(
        "get",
        "-A --all-namespaces --ignore-not-found --no-headers --show-kind --show-labels -w --watch"
        " --watch-only --output-watch-events",
        valued="-o --output -l --selector --field-selector -L --label-columns --sort-by"
        " --chunk-size --subresource",
        effect=_resources,
    ),
    _kubectl(
        "describe",
        "-A --all-namespaces --show-events",
        valued="-l --selector --chunk-size",
        effect=_resources,
    ),
    _kubectl(
        "logs",
        "-f --follow -p --previous --all-containers --timestamps --prefix --ignore-errors",
        valued="-c --container --tail --since --since-time -l --selector --limit-bytes"
        " --max-log-requests",
    ),
    _kubectl("version", "--client", valued="-o --output"),
    _kubectl("explain", "--recursive", valued="--api-version -o --output"),
    _kubectl(
        "api-resources",
        "--namespaced --no-headers --cached",
        valued="--api-group -o --output --sort-by --verbs --categories",
    ),
    _kubectl("api-versions"),
    replace(_kubectl("cluster-info"), at_most=0, beyond="`dump` may write files"),
    *(
        _kubectl(
            f"top {kind}",
            "-A --all-namespaces --no-headers --containers",
            valued="-l --selector --sort-by",
        )
        for kind in ("pod", "pods", "node", "nodes")
    ),
    _kubectl("config view", "--minify --flatten", valued="-o --output"),
    _kubectl("config get-contexts", "--no-headers", valued="-o --output"),
    _kubectl("config current-context"),
    _kubectl("rollout status", "-w --watch", valued="--timeout --revision"),
    _kubectl("rollout history", valued="--revision -o --output"),
    _kubectl("auth can-i", "-A --all-namespaces --list -q --quiet --no-headers"),
)
_KUBECTL_WHYS = {
    "kubectl apply": "it changes a cluster",
    "kubectl config": SETTINGS,
    "kubectl cp": "it copies files into or out of a container",
    "kubectl debug, kubectl exec, kubectl run": RUNS,
    "kubectl delete": "it deletes resources of a cluster",
    "kubectl port-forward": "it opens a port of this machine",
}

_GH_TOP = Command("gh", "--version --help", permutes=False)


def _github(arguments: Arguments) -> Effect:
    # `HOST/OWNER/NAME` and an address may name any machine.
    for word in (*arguments.operands, *arguments.values("-R --repo")):
        if word.value is None or word.value.count("/") > 1 or ":" in word.value:
            return Effect(why=f"`{word.source}` may name another machine")
    return Effect(read_only=True, reads=())


def _gh(name: str, flags: str = "", *, valued: str = "") -> Command:
    return takes_words(
        f"gh {name}",
        f"--help {flags}",
        valued=f"-R --repo --json -q --jq -t --template {valued}",
        asks={"-w --web": "opens a browser"},
        effect=_github,
    )


_GH_ROWS = (
    _gh(
        "pr list",
        "-d --draft",
        valued="-s --state -L --limit -l --label -A --author -B --base"
        " -H --head -S --search -a --assignee",
    ),
    _gh("pr view", "-c --comments"),
    _gh("pr status", "-c --conflict-status"),
    _gh("pr diff", "--name-only --patch", valued="--color"),
    _gh("pr checks", "--required --fail-fast"),
    _gh(
        "issue list",
        valued="-s --state -L --limit -l --label -A --author -a --assignee"
        " -m --milestone -S --search",
    ),
    _gh("issue view", "-c --comments"),
    _gh("issue status"),
    _gh("repo view", valued="-b --branch"),
    _gh("run list", "-a --all", valued="-b --branch -L --limit -s --status -u --user"),
    _gh(
        "run view", "-v --verbose --log --log-failed --exit-status", valued="-j --job -a --attempt"
    ),
    _gh("release list", valued="-L --limit -O --order"),
    _gh("release view"),
    _gh("workflow list", "-a --all", valued="-L --limit"),
    _gh("label list", valued="-L --limit -S --search --order --sort"),
)
_GH_WHYS = {
    "gh api": "it may change anything on GitHub, or ask another machine",
    "gh alias, gh auth, gh config": SETTINGS,
    "gh extension": "it installs or runs programs",
    "gh gist": "it shows or changes gists",
    "gh pr checkout": "it asks GitHub, and checks out a branch",
    "gh pr create": "it sends commits to GitHub, and opens a pull request",
    "gh pr merge": "it merges on GitHub",
    "gh repo clone": "it copies a repository from another machine",
    "gh repo delete": "it deletes a repository on GitHub",
    "gh secret": "it changes secrets on GitHub",
    "gh workflow run": "it runs a workflow on GitHub",
}

_CONTAINERS = {
    "docker": with_subcommands(_DOCKER_TOP, _DOCKER_ROWS, _DOCKER_WHYS),
    "podman": with_subcommands(replace(_DOCKER_TOP, name="podman", flags=""), (), _PODMAN_WHYS),
}


def _containers(command: SimpleCommand) -> Effect:
    program = command.base_name
    effect = _CONTAINERS[program](command)
    values = [word.value for word in command.words[1:]]
    if values[:1] == ["compose"] and {"exec", "run", None} & set(values):
        # Options may stand before its sub-command.
        return replace(effect, runs_words=True)
    if len(values) < 2 or values[0] not in ("container", "image", "builder") or not values[1]:
        return effect
    # `docker container run` is `docker run`, and `docker image rm` is `docker rmi`.
    name = "rmi" if values[:2] in (["image", "rm"], ["image", "remove"]) else values[1]
    return replace(effect, same=renamed(command, 3, f"{program} {name}"))


ROWS: tuple[Command, ...] = (*_DOCKER_ROWS, *_KUBECTL_ROWS, *_GH_ROWS)

_SENDS = asking("it may send to any machine, and write files")
_CLOUD = asking("it asks a service, and may change what it has")

SPECIAL: Mapping[str, Callable[[SimpleCommand], Effect]] = {
    "docker, podman": _containers,
    "kubectl": with_subcommands(_KUBECTL_TOP, _KUBECTL_ROWS, _KUBECTL_WHYS),
    "gh": with_subcommands(_GH_TOP, _GH_ROWS, _GH_WHYS),
    "curl, wget, nc, ncat, netcat, telnet, ftp, http": _SENDS,
    "scp, sftp": asking("it copies files to or from another machine"),
    "aws, gcloud, az, doctl, flyctl, heroku, vercel": _CLOUD,
    "psql, mysql, mariadb, sqlite3, mongosh, redis-cli": asking(
        "it may change data, and run programs"
    ),
    "openssl": asking("it may write files, and read private keys"),
    "ssh-keygen": asking("it writes keys, or reads them"),
}
