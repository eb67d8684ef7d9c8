"""Regions: parts of a model whose precision its author decides where the model is written.

    class Attention(nn.Module):
        def forward(self, q, k, v):
            scores = q @ k.mT
            with amp.disable_autocast(dtype="float32"):
                weights = scores.softmax(-1)
            return weights @ v

Sources: SambaFlow's `disable_graphamp`, Paddle's `fp16_guard`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from autocast.errors import PolicyError
from autocast.ir.places import REGIONS, active_region
from autocast.policy.text import dtype_name

__all__ = ["Region", "disable_autocast", "fp16_guard"]

Subject = TypeVar("Subject", bound=Callable[..., Any])


def disable_autocast(dtype: Any = None) -> Region:
    """A region whose operators run in a dtype that the model's author chose, whatever the policy is.

    Parameters
    ----------
    dtype
        "float32", "bfloat16" or "float16" (or torch's dtype of that name): operators take their floating-point
        arguments in it, and give their results in it. None: in the dtypes that the code itself says, so that
        `torch.matmul(a.bfloat16(), b.bfloat16())` is computed in bfloat16 and `torch.matmul(a, b)` in float32.

    Returns
    -------
    Region
        A context manager, and a decorator of functions, methods, and modules (classes or instances). Regions nest:
        the innermost one decides. In training, backward operators are in the regions of their forward operators.
        Run eagerly, the code does what it did, with torch.autocast off.

    Raises
    ------
    PolicyError
        `dtype` is none of these.
    """
    name = "leave" if dtype is None else dtype_name(dtype)
    if name not in REGIONS[2:]:
        legal = ", ".join(repr(region) for region in REGIONS[3:])
        raise PolicyError(
            f"disable_autocast: got dtype={dtype!r}, expected {legal}, or None for the dtypes that the code says"
        )
    return Region(name)


def fp16_guard() -> Region:
    """A region that alone is autocast under `Policy(guarded=True)`: there, casting rules are asked only inside.

    Under every other policy it is as if it were not there. See `disable_autocast` for what a region can decorate.
    """
    return Region("guard")


class Region:
    """One region: a context manager that may be entered again and again, and a decorator."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._entered: list[AbstractContextManager[None]] = []

    def __repr__(self) -> str:
        if self.name == "guard":
            return "fp16_guard()"
        return "disable_autocast()" if self.name == "leave" else f"disable_autocast(dtype={self.name!r})"

    def __enter__(self) -> None:
        context = self._context()
        context.__enter__()
        self._entered.append(context)

    def __exit__(self, *exception: Any) -> None:
        self._entered.pop().__exit__(*exception)

    def _context(self) -> AbstractContextManager[None]:
        if "torch" not in sys.modules:
            return active_region(self.name)
        from autocast.frontend.nodes import torch_region

        return torch_region(self.name, self.name != "guard")

    def __call__(self, subject: Subject) -> Subject:
        """`subject` with all that it does in this region; a module, or a class of them, is changed in place."""
        module: Any = subject
        is_class = isinstance(subject, type)
        if hasattr(module, "forward"):
            if is_class:
                module.forward = self._function(module.forward)
            else:
                in_region = functools.partial(_in_region, self.name, module.forward)
                module.forward = functools.update_wrapper(in_region, module.forward)
            return subject
        later = inspect.isgeneratorfunction(subject) or inspect.iscoroutinefunction(subject)
        if is_class or later or not callable(subject):
            raise PolicyError(
                f"{self!r} decorates functions, methods, and modules that have a forward; got {subject!r}"
                f"{', whose body runs after it returns' if later else ''}. Decorate what computes, or use `with` there"
            )
        return self._function(subject)

    def _function(self, function: Subject) -> Subject:
        @functools.wraps(function)
        def in_region(*args: Any, **kwargs: Any) -> Any:
            with self._context():
                return function(*args, **kwargs)

        return in_region  # type: ignore


def _in_region(name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The forward of one module, in a region: a partial of this, which copies, pickles and exports keep."""
    with Region(name):
        return forward(*args, **kwargs)
