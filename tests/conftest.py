"""Settings of the whole suite: thread pools, seeds, hypothesis profiles."""

from __future__ import annotations

import os

# Set before TVM or torch is imported, since both read it once: the workers of a parallel run share the cores. With two
# workers of two threads on two cores, one worker's thread pool spins on the core that the other computes on.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_THREADS = str(max(1, (os.cpu_count() or 1) // _WORKERS))
for _name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, _THREADS)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Every kernel that a test runs gets NaN wherever it should write, and finds NaN wherever it should not read any more.
os.environ.setdefault("AUTOCAST_DEBUG", "poison")

# What one test imported or compiled is no other's, but for equal kernels: see `_equal_kernels_are_compiled_once`. Tests
# of the cache have a folder of their own.
os.environ["AUTOCAST_CACHE"] = "off"

import gc  # noqa: E402
import inspect  # noqa: E402
import pickle  # noqa: E402
import random  # noqa: E402
import zlib  # noqa: E402
from collections.abc import Iterator, Mapping  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402
from unittest.mock import patch  # noqa: E402

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from autocast.cache.store import Found  # noqa: E402
from autocast.container import Format  # noqa: E402
from autocast.kernels import detect_target, kernel_cache  # noqa: E402
from tests.kernels.targets.cpu.emulation import running_code_for  # noqa: E402
from tests.thoroughness import thorough_cases  # noqa: E402

# Compiling makes the first example slow: no deadline. CI draws the same examples at every run, a developer fresh ones.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")

# TVM's decorators ask for the whole stack with its sources, and for each frame of an import that is in no file Python
# goes over all modules: half of the time of collecting the tests.
inspect.modulesbyfile.update(  # type: ignore[attr-defined]
    {f"<frozen {name}>": name for name in ("importlib._bootstrap", "importlib._bootstrap_external")}
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say how much of the whole suite is run."""
    parser.addoption("--thorough", action="store_true", help="also run the cases that tests/thorough.toml names")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that repeat what others test, unless they or their files were asked for."""
    if config.getoption("thorough") or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    left_out = thorough_cases()
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


def pytest_collection_finish() -> None:
    """Let garbage collections pass over what was imported, millions of objects that stay, and be rarer after that."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


@pytest.fixture(autouse=True, scope="session")
def _one_thread_makes_the_first_call_of_mkl() -> None:
    """Where two threads of a process made it at once, one was given an exp that is right to 1e-4 (once in 15,000)."""
    pytest.importorskip("torch", reason="the tests compare with torch").zeros(64).exp()


class _Entries(dict[str, bytes]):
    """A file of the cache, in memory."""

    metadata: Mapping[str, Any]


class _Memory:
    """Files of the cache in memory, and in a folder that the workers of a run share."""

    folders = ("memory",)

    def __init__(self, shared: Path) -> None:
        self.kept: dict[str, Found] = {}
        self.shared = shared

    def find(self, kind: Format, key: str) -> Found | None:
        if key not in self.kept:
            try:
                self._keep(key, *pickle.loads(zlib.decompress((self.shared / key).read_bytes())))
            except FileNotFoundError:
                return None
        return self.kept[key]

    def add(self, kind: Format, key: str, entries: Mapping[str, bytes], facts: Mapping[str, Any]) -> None:
        self._keep(key, entries, facts)
        partial = self.shared / f"{key}.{os.getpid()}"
        partial.write_bytes(zlib.compress(pickle.dumps((dict(entries), dict(facts)))))
        partial.replace(self.shared / key)

    def _keep(self, key: str, entries: Mapping[str, bytes], facts: Mapping[str, Any]) -> None:
        entry = _Entries(entries)
        entry.metadata = facts
        self.kept[key] = Found(entry, "process")


@pytest.fixture(autouse=True, scope="session")
def _equal_kernels_are_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A third of the kernels that tests compile have the loops of others: their key is all that makes code of them."""
    own = tmp_path_factory.getbasetemp()  # which is in the run's where there are workers
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "kernels"
    shared.mkdir(exist_ok=True)
    store, memory = kernel_cache.store, _Memory(shared)
    with patch.object(kernel_cache, "store", lambda: store() if store().folders else memory):
        yield


@pytest.fixture(autouse=True, scope="session")
def _every_processor_is_tested_on_every_other() -> Iterator[None]:
    """AUTOCAST_TARGET=znver4 tests as on that one, and emulates its instructions where this one lacks them."""
    with running_code_for(detect_target()):
        yield


@pytest.fixture(autouse=True)
def _same_random_numbers_for_every_test() -> Iterator[None]:
    """Seed the global generators, so that a test's data do not depend on which tests ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch = pytest.importorskip("torch", reason="the tests compare with torch")
    torch.manual_seed(0)
    yield
