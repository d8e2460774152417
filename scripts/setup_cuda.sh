#!/usr/bin/env bash
# What the CUDA build needs besides scripts/setup.sh and the CUDA toolkit with cuDNN 9: NVIDIA's cudnn-frontend
# headers, from PyPI, pinned, into .venv/cudnn_frontend.
set -euo pipefail
cd "$(dirname "$0")/.."
target=.venv/cudnn_frontend
version=1.32.0
[ -f "$target/$version" ] && exit 0
python3 -m pip --version >/dev/null 2>&1 || { echo "setup_cuda: python3 with pip is needed to fetch the headers" >&2; exit 2; }
rm -rf "$target" && mkdir -p "$target"
python3 -m pip download -q --no-deps --only-binary=:all: -d "$target" "nvidia-cudnn-frontend==$version"
python3 - "$target" <<'PY'
import pathlib, sys, zipfile
target = pathlib.Path(sys.argv[1])
wheel = next(target.glob("*.whl"))
with zipfile.ZipFile(wheel) as z:
    z.extractall(target, [n for n in z.namelist() if n.startswith("include/")])
wheel.unlink()
PY
touch "$target/$version"
