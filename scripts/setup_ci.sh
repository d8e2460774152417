#!/usr/bin/env bash
# What CI needs besides scripts/setup.sh: the formatter and the linter.
set -euo pipefail
missing=()
for tool in clang-format clang-tidy; do command -v "$tool" >/dev/null || missing+=("$tool"); done
[ ${#missing[@]} -eq 0 ] && exit 0
sudo=
[ "$(id -u)" -eq 0 ] || sudo=sudo
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
