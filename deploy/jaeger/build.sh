#!/usr/bin/env bash
# Builds Jaeger with Go, for machines without a registry of images: deploy/jaeger/build.sh [FOLDER]
# The program receives spans and answers queries; the web pages are not in the source, and stay empty.
# Does nothing if FOLDER (the user's cache unless given) has this version already.
set -euo pipefail

module=github.com/jaegertracing/jaeger
release=v1.76.0 # Jaeger 2.13.0; releases have both numbers up to this one
version=v2.13.0
folder="$(realpath -m "${1:-${XDG_CACHE_HOME:-$HOME/.cache}/toolbus/jaeger}")"
program="$folder/jaeger"

if "$program" version 2> /dev/null | grep -qF "\"$version\""; then
  echo "$program is there: Jaeger $version"
  exit
fi
if ! command -v go > /dev/null; then
  echo "Jaeger is built with Go 1.24.6 or newer, and go is not on the path: install it from https://go.dev/dl" >&2
  exit 1
fi

echo "downloading the source of Jaeger $version"
(cd / && go mod download "$module@$release")
mkdir -p "$folder"
echo "building $program: this takes some minutes"
stamp="-X $module/internal/version.latestVersion=$version"
(cd "$(go env GOMODCACHE)/$module@$release" &&
  CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -trimpath -ldflags "-s -w $stamp" -o "$program.new" ./cmd/jaeger)
mv "$program.new" "$program"
echo "built $program"
