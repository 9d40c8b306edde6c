#!/bin/sh
# A browser for the dashboard's tests, where there is none and the system lets us install one. Without it they skip at a
# desk and fail in CI.
set -u
if [ -n "${QO_TEST_CHROMIUM:-}" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null; then
    exit 0
fi
command -v apt-get >/dev/null || exit 0
if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get install -y -q chromium >/dev/null 2>&1 ||
    { $as_root apt-get update -q >/dev/null 2>&1 && $as_root apt-get install -y -q chromium >/dev/null 2>&1; } ||
    echo "Chromium could not be installed; the dashboard's tests will not run" >&2
