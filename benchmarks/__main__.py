"""All benchmarks, one after the other: python -m benchmarks. The tables say what was met and missed.

With --quick, in 3 minutes: a few cases of the most important ones, without `torch.compile`.
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
    "starting",
    "first_iteration",
    "presets",
)

#: The most important ones.
QUICK = (
    "kernels.products",
    "kernels.attention",
    "models",
)

if __name__ == "__main__":
    chosen = QUICK if "--quick" in sys.argv else BENCHMARKS
    failed = [
        name
        for name in chosen
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]], check=False).returncode
    ]
    if left_out := [name for name in BENCHMARKS if name not in chosen]:
        print(f"--quick left out: {', '.join(left_out)}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
