#!/bin/bash
# Prints the path of promtool, which checks and tests the alert rules of monitoring/.
#
# Takes the one on the PATH. Otherwise it downloads Debian's package `prometheus` with apt-get (20 MB), and unpacks
# promtool alone into target/promtool. Nothing is installed, no service is started, and root is not needed.
set -eu -o pipefail

if command -v promtool; then
    exit
fi
folder="$(cd "$(dirname "$0")/.." && pwd)/target/promtool"
if [ ! -x "$folder/promtool" ]; then
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
        echo "promtool is not on the PATH, and this is no Debian to download it from: install Prometheus" >&2
        exit 1
    fi
    mkdir -p "$folder"
    unpacked="$(mktemp -d "$folder/.XXXXXX")"
    trap 'rm -rf "$unpacked"' EXIT
    download() { (cd "$unpacked" && apt-get download -qq prometheus) >&2; }
    download || { apt-get update -qq >&2 && download; } || {
        echo "apt-get could not download the package prometheus: is there a network, and did apt-get update run?" >&2
        exit 1
    }
    dpkg-deb --extract "$unpacked"/prometheus_*.deb "$unpacked"
    mv "$unpacked/usr/bin/promtool" "$folder/promtool"
fi
echo "$folder/promtool"
