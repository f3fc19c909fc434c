#!/bin/sh
# Debian packages that some tests need: a browser with a Japanese font, and a PostgreSQL server. Only used in CI.
set -eu
missing=""
command -v chromium >/dev/null 2>&1 || missing="$missing chromium fonts-noto-cjk"
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
command -v msgfmt >/dev/null 2>&1 || missing="$missing gettext"
[ -n "$missing" ] || exit 0
echo "[setup] installing$missing"
sudo=""
[ "$(id -u)" = "0" ] || sudo="sudo"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
