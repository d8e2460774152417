# Sourced by the h200 scripts: finds the CUDA libraries, the toolkit's first, then those of Python packages.
libs=$(python3 -c '
import glob, os, sys
roots = [p for p in sys.path if p.endswith("site-packages")]
print(":".join(sorted({os.path.dirname(f) for r in roots for f in glob.glob(r + "/nvidia/**/lib*.so*", recursive=True)})))')
export LD_LIBRARY_PATH="/usr/local/cuda/lib64:$libs:${LD_LIBRARY_PATH:-}"
