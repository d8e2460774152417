#!/usr/bin/env bash
# Arrow C++ for Parquet inputs: headers and two libraries of PyPI's pyarrow, pinned, into .venv/arrow.
set -euo pipefail
cd "$(dirname "$0")/.."
target=.venv/arrow
version=26.0.1
[ -f "$target/$version" ] && exit 0
python3 -m pip --version >/dev/null 2>&1 || { echo "setup_parquet: python3 with pip is needed to fetch Arrow" >&2; exit 2; }
rm -rf "$target" && mkdir -p "$target/lib"
python3 -m pip download -q --no-deps --only-binary=:all: -d "$target" "pyarrow==$version"
python3 - "$target" <<'PY'
import pathlib, re, sys, zipfile
target = pathlib.Path(sys.argv[1])
wheel = next(target.glob("*.whl"))
with zipfile.ZipFile(wheel) as z:
    for n in z.namelist():
        library = re.fullmatch(r"pyarrow/(lib(?:arrow|parquet)\.so)\.\d+", n)
        if n.startswith("pyarrow/include/") and not n.endswith("/"):
            out = target / n.removeprefix("pyarrow/")
        elif library:
            out = target / "lib" / pathlib.Path(n).name
            (target / "lib" / library.group(1)).symlink_to(out.name)
        else:
            continue
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(z.read(n))
wheel.unlink()
PY
touch "$target/$version"
