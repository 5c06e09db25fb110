#!/bin/sh
# Builds the images of both compose files without a registry of images: `local-images/build.sh` in `deploy`.
# It needs root, Debian, mmdebstrap and a Docker engine. docs/guides/without-a-registry.md describes its use.
# An image that exists is not built again; `build.sh --again` builds all.
set -eu
cd "$(dirname "$0")"

fail() {
  printf 'build.sh: %s\n' "$*" >&2
  exit 1
}

again=
case "${1:-}" in
  "") ;;
  --again) again=yes ;;
  *) fail "unknown option $1: use --again, or nothing" ;;
esac
[ "$(id -u)" = 0 ] || fail "mmdebstrap needs root here: run it as root"
command -v mmdebstrap >/dev/null || fail "install mmdebstrap: apt-get install mmdebstrap"
docker version >/dev/null 2>&1 || fail "no Docker engine answers: start it, or set DOCKER_HOST"
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ -n "$release" ] || fail "/etc/os-release names no release of Debian"

is_wanted() {
  [ -n "$again" ] || ! docker image inspect "$1" >/dev/null 2>&1
}

# Debian with its Python. The machine's certificates and settings of pip are copied, so that pip finds the
# index of packages that this machine uses.
if is_wanted toolbus-base; then
  mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates \
    --customize-hook='ln -s python3 "$1/usr/bin/python"' \
    --customize-hook='cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"' \
    --customize-hook='! test -e /etc/pip.conf || cp /etc/pip.conf "$1/etc/"' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin' \
    "$release" - | docker import --change 'CMD ["python3"]' - toolbus-base >/dev/null
fi

build() { # build NAME CONTEXT OPTION...
  name=$1 context=$2
  shift 2
  if is_wanted "$name"; then
    docker build --quiet --tag "$name" "$@" "$context" >/dev/null
  fi
}
build toolbus ../.. --file ../Dockerfile --build-arg BASE=toolbus-base
build toolbus-haproxy . --file haproxy.Dockerfile
build toolbus-valkey . --file valkey.Dockerfile
build toolbus-trace . --file trace.Dockerfile
