#!/bin/sh
# A Docker engine of the tests' own, with images that no registry provides; for Debian, as root.
#
#   engine.sh start FOLDER   starts the engine unless it runs, builds the images that are missing, and prints
#                            the variables to use: eval "$(engine.sh start FOLDER)"
#   engine.sh stop FOLDER    ends containers and engine, and removes its mounts, networks and rules
#
# All of it is in FOLDER, except packages of Debian (docker.io, iptables, mmdebstrap). Exit code 3: this machine
# cannot have an engine, or has another one already; stderr says why.
set -eu

repository=$(cd "$(dirname "$0")/../../.." && pwd)
command=${1:-} folder=${2:-}
case "$command $folder" in
  "start "?* | "stop "?*) ;;
  *)
    echo "usage: engine.sh start|stop FOLDER" >&2
    exit 2
    ;;
esac

say() {
  printf '%s\n' "$*" >&2
}

cannot() {
  say "engine.sh: no containers here: $*"
  exit 3
}

check_machine() {
  [ "$(id -u)" = 0 ] || cannot "only root can start an engine"
  system=$(. /etc/os-release && echo "$ID")
  [ "$system" = debian ] || cannot "it takes its packages from Debian, and this is $system"
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
}

is_running() {
  [ -S "$folder/docker.sock" ] && docker version >/dev/null 2>&1
}

install_engine() {
  missing=
  for program in docker dockerd iptables mmdebstrap; do
    command -v "$program" >/dev/null || missing="$missing $program"
  done
  [ -n "$missing" ] || return 0
  packages="docker.io iptables mmdebstrap"
  [ "$release" = bookworm ] || packages="$packages docker-cli" # a part of docker.io in Debian 12
  say "installing $packages: this takes 10 s"
  # RUNLEVEL keeps what is installed from being started as a service.
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends $packages; } \
    >"$folder/apt.log" 2>&1 </dev/null || cannot "apt-get failed: $(tail -n 3 "$folder/apt.log")"
}

# Compose 2 and buildx are in Debian 13. Unpacked, they run on Debian 12 too, and nothing is installed.
unpack_plugins() {
  [ -d "$folder/config/cli-plugins" ] && return 0
  say "unpacking Compose and buildx"
  site=$(apt-get indextargets --format '$(SITE) $(RELEASE)' 'Created-By: Packages' \
    | awk -v release="$release" '$2 == release {print $1; exit}')
  [ -n "$site" ] || cannot "apt has no source of packages for $release"
  from=$release
  [ "$from" != bookworm ] || from=trixie
  apt=$folder/apt
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site $from main" >"$apt/sources.list"
  set -- -qq -oDir::Etc::sourcelist="$apt/sources.list" -oDir::Etc::sourceparts=/dev/null \
    -oDir::State::lists="$apt/lists" -oDir::Cache="$apt/cache" -oAPT::Sandbox::User=root
  (
    apt-get "$@" update && cd "$apt/debs" && apt-get "$@" download docker-compose docker-buildx
    for package in *.deb; do dpkg-deb -x "$package" "$apt/unpacked"; done
    mkdir -p "$folder/config/new"
    install -m 755 "$apt/unpacked/usr/libexec/docker/cli-plugins/"* "$folder/config/new"
    mv "$folder/config/new" "$folder/config/cli-plugins"
  ) >"$folder/plugins.log" 2>&1 || cannot "no Compose from Debian: $(tail -n 3 "$folder/plugins.log")"
  rm -rf "$apt"
}

# Whether the engine may have left its bridge and rules here.
has_network() {
  [ -e "$folder/forward" ]
}

is_alive() { # a process that has ended and that its parent has not read is not alive
  [ -d "/proc/$1" ] && ! grep -qs '^State:[[:space:]]*Z' "/proc/$1/status"
}

start_engine() {
  if ! has_network; then
    [ ! -e /sys/class/net/docker0 ] || cannot "another engine runs (there is a network docker0): use that one"
    cat /proc/sys/net/ipv4/ip_forward >"$folder/ip_forward"
    iptables -S FORWARD | head -n 1 >"$folder/forward"
  fi
  if [ -s "$folder/engine.pid" ] && ! is_alive "$(cat "$folder/engine.pid")"; then
    rm "$folder/engine.pid"
  fi
  # What it publishes stays on loopback unless told otherwise.
  setsid dockerd --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/engine.pid" \
    --host "unix://$folder/docker.sock" --ip 127.0.0.1 >"$folder/engine.log" 2>&1 </dev/null &
  waited=0
  until docker version >/dev/null 2>&1; do
    waited=$((waited + 1))
    if [ "$waited" -gt 120 ] || ! is_alive $!; then
      cannot "the engine did not start: $(tail -n 3 "$folder/engine.log")"
    fi
    sleep 0.5
  done
}

start() {
  check_machine
  mkdir -p "$folder"
  folder=$(cd "$folder" && pwd)
  export DOCKER_HOST="unix://$folder/docker.sock" DOCKER_CONFIG="$folder/config"
  install_engine
  unpack_plugins
  is_running || start_engine
  say "building the images that are missing: this takes a minute the first time"
  "$repository/deploy/local-images/build.sh" >&2 || cannot "the images could not be built"
  echo "export DOCKER_HOST='$DOCKER_HOST' DOCKER_CONFIG='$DOCKER_CONFIG'"
}

remove_rules() { # remove_rules iptables
  command -v "$1" >/dev/null || return 0
  "$1-save" | grep -vE 'DOCKER|docker0' | "$1-restore"
}

# An engine leaves its bridge and its rules behind, and forwarding on.
restore_network() {
  ip link delete docker0 2>/dev/null || true
  remove_rules iptables
  remove_rules ip6tables
  set -- $(cat "$folder/forward")
  iptables -P FORWARD "$3"
  cat "$folder/ip_forward" >/proc/sys/net/ipv4/ip_forward
  rm "$folder/forward"
}

stop() {
  [ -d "$folder" ] || return 0
  folder=$(cd "$folder" && pwd)
  has_network || return 0
  export DOCKER_HOST="unix://$folder/docker.sock"
  # An engine that was killed is started again: only it knows its containers and networks. Its containerd
  # takes a moment to end.
  is_running || { sleep 2 && start_engine; }
  for container in $(docker ps --all --quiet); do
    docker rm --force --volumes "$container" >/dev/null
  done
  for network in $(docker network ls --quiet --filter type=custom); do
    docker network rm "$network" >/dev/null
  done
  pid=$(cat "$folder/engine.pid")
  kill "$pid"
  while is_alive "$pid"; do sleep 0.2; done
  # An engine that was killed had mounted its data; the next one did so once more.
  awk -v under="$folder/" 'index($2, under) == 1 {print $2}' /proc/mounts | sort -r | while read -r mount; do
    umount "$mount"
  done
  restore_network
}

"$command"
