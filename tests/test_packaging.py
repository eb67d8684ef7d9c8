"""What is installed: the packages, their marker of types, their version, and what importing them does not need."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import autocast
import type_hints
from tests import torch_versions

REPOSITORY = Path(__file__).resolve().parent.parent
BLOCK_IMPORT = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"blocked: {{name}}", name=name)
        return None

sys.meta_path.insert(0, Block())
import {module}
"""


def import_without(module: str, *blocked: str) -> subprocess.CompletedProcess[str]:
    """Import `module` in a fresh interpreter in which the top-level packages `blocked` cannot be imported."""
    program = BLOCK_IMPORT.format(module=module, blocked=set(blocked))
    return subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("package", [autocast, type_hints], ids=lambda package: package.__name__)
def test_both_packages_say_that_they_are_typed(package):
    assert (Path(package.__file__).parent / "py.typed").is_file()


def test_the_installed_distribution_has_the_version_of_pyproject():
    tomllib = pytest.importorskip("tomllib", reason="the standard library has tomllib from Python 3.11 on")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    try:
        installed = importlib.metadata.version(project["name"])
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the project is not installed; these tests run from its source tree")
    assert installed == project["version"]


def test_the_console_script_names_a_function_that_exists():
    from autocast import cli

    assert callable(cli.main)


@pytest.mark.parametrize("module", ["autocast, autocast.amp, autocast.kernels, autocast.vm", "type_hints"])
def test_importing_needs_no_torch(module):
    result = import_without(module, "torch", "transformers")
    assert result.returncode == 0, result.stderr


def test_the_blocking_of_imports_blocks():
    assert "blocked: torch" in import_without("torch", "torch").stderr


def test_type_hints_knows_nothing_of_autocast():
    result = import_without("type_hints", "autocast")
    assert result.returncode == 0, result.stderr


def test_torch_has_no_upper_bound():
    tomllib = pytest.importorskip("tomllib", reason="the standard library has tomllib from Python 3.11 on")
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (torch,) = (requirement for requirement in extras["torch"] if requirement.startswith("torch"))
    assert torch == "torch>=2.9"


def test_of_each_minor_version_of_torch_the_newest_patch_is_tried():
    listed = "2.10.0, 2.9.1, 2.9.0, 2.11.0+cpu, 2.11.0, 2.8.4, 1.13.1"
    assert torch_versions.newest_patches(listed, (2, 9)) == ["2.9.1", "2.10.0", "2.11.0"]
