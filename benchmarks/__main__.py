"""All benchmarks, one after the other: python -m benchmarks. The tables say what was met and missed.

With --quick, in 3 minutes: a few cases of the most important ones.
"""

from __future__ import annotations

import subprocess
import sys

#: In this order: the pass, the kernels by family, whole models.
BENCHMARKS = (
    "autocast_pass",
    "plans",
    "kernels.products",
    "kernels.attention",
    "kernels.convolutions",
    "kernels.rows",
    "kernels.reductions",
    "kernels.elementwise",
    "kernels.layout",
    "runtime",
    "models",
    "training",
)

#: The most important ones.
QUICK = (
    "kernels.products",
    "kernels.attention",
    "kernels.convolutions",
    "kernels.rows",
    "kernels.elementwise",
    "models",
)

if __name__ == "__main__":
    failed = [
        name
        for name in (QUICK if "--quick" in sys.argv else BENCHMARKS)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]], check=False).returncode
    ]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
