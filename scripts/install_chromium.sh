#!/usr/bin/env bash
# Debian's chromium, for the tests of the dashboard and for its screenshots; installed if it is missing.
set -euo pipefail
[ -x /usr/bin/chromium ] && exit 0
run() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
if ! command -v apt-get >/dev/null; then
    echo "tests/process/dashboard needs /usr/bin/chromium: install it with the packages of this system" >&2
    exit 1
fi
run apt-get update -qq || true # the lists that are here may do
run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
