"""`python -m tests.torch_versions`: the tests of what touches torch, on each minor version of it that pip can install.

Each version gets an environment of its own in a folder for temporary files (several GB where the package index serves
torch with GPU libraries), with the newest of its patches, and loses it afterwards. The last lines are a table: what
passed, and what did not.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

#: The oldest minor version that is tried.
OLDEST = (2, 9)

#: What reads torch's programs or writes them: the importer, the target, torch.compile and `wrap`, torch's devices.
TESTS = (
    "tests/frontend",
    "tests/torch_target",
    "tests/dynamo",
    "tests/test_wrapping.py",
    "tests/vm/test_torch_devices.py",
)

#: What the environments hold beside torch; not the extra `torch`, which refuses versions that are too old.
_OTHERS = (f"{REPOSITORY}[test]", "transformers>=5,<6")


#: What pytest returns where all tests passed, and where some failed.
_RAN = (0, 1)


@dataclass(frozen=True)
class Outcome:
    """What came of one version: pytest's last line, which tests failed, and whether pytest is content."""

    version: str
    summary: str
    failed: tuple[str, ...] = ()
    passed: bool = True


def newest_patches(listed: str, oldest: tuple[int, int] = OLDEST) -> list[str]:
    """Of the versions that `pip index versions torch` lists the newest of each minor one, from `oldest` on."""
    newest: dict[tuple[int, int], tuple[int, str]] = {}
    for text in re.findall(r"\b\d+\.\d+\.\d+\b(?![\w+])", listed):
        major, minor, patch = map(int, text.split("."))
        if (major, minor) >= oldest:
            newest[major, minor] = max(newest.get((major, minor), (-1, "")), (patch, text))
    return [text for _, (_, text) in sorted(newest.items())]


def available(pip_args: Sequence[str]) -> list[str]:
    """The versions that pip could install here."""
    pip = [sys.executable, "-m", "pip", "index", "versions", "torch", *pip_args]
    listed = subprocess.run(pip, check=True, capture_output=True, text=True).stdout
    return newest_patches(listed.partition("Available versions:")[2].partition("\n")[0])


def tried(version: str, tests: Sequence[str], pip_args: Sequence[str]) -> Outcome:
    """Install a version, and run the tests on it."""
    with tempfile.TemporaryDirectory(prefix=f"torch-{version}-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        for packages in ([*pip_args, f"torch=={version}"], [f"torch=={version}", *_OTHERS]):
            done = _run([python, "-m", "pip", "install", "--quiet", *packages])
            if done.returncode:
                return Outcome(version, "cannot be installed: " + (done.stderr.strip().splitlines() or ["?"])[-1])
        done = _run([python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-rfE", *tests])
    said = done.stdout if done.returncode in _RAN else done.stderr
    lines = said.strip().splitlines()
    failed = tuple(re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE))
    return Outcome(version, lines[-1].strip("= ") if lines else "nothing was said", failed, done.returncode == 0)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a table for a page."""
    rows = [f"| {outcome.version} | {outcome.summary} |" for outcome in outcomes]
    return "\n".join(["| torch | tests |", "|---|---|", *rows])


def main() -> int:
    """Try the versions that were asked for; 1 where a test failed, or none was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.torch_versions", description=__doc__)
    parser.add_argument("--versions", nargs="*", help="such as 2.14.1; each minor version that pip finds, if omitted")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="files and folders of tests")
    parser.add_argument("--pip-args", default="", help='for example "--index-url https://download.pytorch.org/whl/cpu"')
    options = parser.parse_args()
    pip_args = options.pip_args.split()
    outcomes = []
    for version in options.versions or available(pip_args):
        outcomes.append(tried(version, options.tests, pip_args))
        print(outcomes[-1].version, outcomes[-1].summary, *outcomes[-1].failed, sep="\n  ", flush=True)
    print(table(outcomes))
    return int(not all(outcome.passed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
