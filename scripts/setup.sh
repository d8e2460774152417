#!/usr/bin/env bash
# Installs what the build needs, pinned, from the distribution's registry. Debian 12 or Ubuntu 24.04; run as
# root or with sudo at hand. Does nothing when all is there.
set -euo pipefail
cd "$(dirname "$0")"

. /etc/os-release
list="deps.${ID}${VERSION_ID}.txt"
if [ ! -f "$list" ]; then
  echo "setup: $PRETTY_NAME is not supported (Debian 12 and Ubuntu 24.04 are); install the packages of" \
    "scripts/deps.debian12.txt by hand, then build with cmake --preset cpu" >&2
  exit 2
fi

mapfile -t specs < <(grep -v '^#' "$list")
missing=()
for spec in "${specs[@]}"; do
  have=$(dpkg-query -W -f '${db:Status-Abbrev}${Version}' "${spec%%=*}" 2>/dev/null || true)
  # shellcheck disable=SC2053 # the pattern is meant as one
  [[ $have == "ii "${spec#*=} ]] || missing+=("$spec")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: all ${#specs[@]} packages are there"
  exit 0
fi

sudo=
[ "$(id -u)" -eq 0 ] || sudo=sudo
echo "setup: installing ${#missing[@]} of ${#specs[@]} packages"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
if ! $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; then
  echo "setup: a pinned version is not to be had; see the line above and scripts/$list" >&2
  exit 2
fi
