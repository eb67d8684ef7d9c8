"""TVM's runtime without its compiler: libraries of a few MB, loaded in milliseconds where `import tvm` takes seconds.

Importing this makes `tvm_ffi` and what compiled code calls ready; `import tvm` finds the same libraries then.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autocast.errors import UnsupportedError

if TYPE_CHECKING:
    import tvm_ffi

#: Of TVM's wheel, in this order.
_LIBRARIES = ("tvm_runtime", "tvm_runtime_extra")


def _import_ffi() -> None:
    """Import `tvm_ffi` without torch, which it would import first wherever it is installed: a second or two.

    Tensors of torch are taken all the same, by DLPack.
    """
    if "tvm_ffi" in sys.modules or "torch" in sys.modules:
        import tvm_ffi

        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # how Python marks a module that cannot be imported
    try:
        import tvm_ffi  # noqa: F401
    finally:
        del sys.modules["torch"]


def _load_libraries() -> None:
    """Load the libraries that compiled code calls.

    Raises
    ------
    UnsupportedError
        The package `apache-tvm` is not installed, or has no libraries where its wheels have them.
    """
    package = importlib.util.find_spec("tvm")  # finds it, and does not import it
    if package is None or package.origin is None:
        raise UnsupportedError(
            "autocast.runtime: the package apache-tvm is not installed, whose runtime libraries compiled models call; "
            'try pip install "apache-tvm>=0.27,<0.28"'
        )
    from tvm_ffi.libinfo import load_lib_ctypes

    folder = Path(package.origin).parent / "lib"
    for name in _LIBRARIES:
        try:
            load_lib_ctypes("tvm", name, "RTLD_GLOBAL", extra_lib_paths=[folder])
        except (OSError, RuntimeError) as error:
            raise UnsupportedError(
                f"autocast.runtime: the library {name} cannot be loaded from {folder} ({error}); expected those "
                'of TVM 0.27\'s wheel; try pip install --force-reinstall "apache-tvm>=0.27,<0.28"'
            ) from error


if "tvm" not in sys.modules:
    _import_ffi()
    _load_libraries()


@functools.cache
def function(name: str) -> tvm_ffi.Function:
    """A function of TVM's runtime, or one that was registered, by its name."""
    import tvm_ffi

    found: Any = tvm_ffi.get_global_func(name)
    return found
