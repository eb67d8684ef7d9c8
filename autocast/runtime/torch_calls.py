"""Calls of torch's operators by compiled code: the packed functions `torch.aten.geqrf.default`, and their gradients.

A compiled model calls such a function where nothing here computes an operator of torch. Its first argument is a text
that says what the operator is given (`Request`); then come the tensors, the sizes and the state of random numbers that
the text refers to, then the tensors that the results are written to; results whose sizes values decide are returned
instead (`torch.found.aten.nonzero.default`). Tensors share memory with torch's; one of complex numbers is one of pairs,
whose last axis has two elements.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tvm_ffi

from autocast.errors import FallbackWarning, InputError, UnsupportedError
from autocast.runtime import collectives, sharding

#: How the names of the packed functions begin; after it comes the operator, namespace.name.overload.
PREFIX = "torch."

#: How those begin that compute gradients.
BACKWARD = "torch.backward."

#: How those begin that return their results, whose sizes are found when they run.
FOUND = "torch.found."


@dataclass(frozen=True)
class Request:
    """What an operator is given, as JSON can say it, and which of its results are wanted.

    Attributes
    ----------
    args, kwargs
        Its arguments: numbers, texts, lists, and dictionaries of one key for all else: {"tensor": 0}, {"columns": 0}
        (matrices whose columns lie together in memory) and {"pairs": 0} (complex) are tensors by their places among
        those that are passed, {"number": 0} the one element of such a tensor, {"size": 0} one of the sizes,
        {"dtype": "float32"}, {"layout": ...}, {"memory_format": ...}, {"device": "cpu"}, {"complex": [0, 1]}.
    tensors
        How many tensors are passed.
    outputs
        For each tensor that it returns whether it is complex, and becomes pairs.
    sizes
        Whether sizes are passed.
    stream
        Of an operator that draws random numbers: the number of its stream. The state of random numbers is passed then.
    adjoints
        Of a gradient: the results whose adjoints are passed, by their places.
    wanted
        Of a gradient: the tensors whose adjoints are computed, by their places.
    writes
        Whether it writes into its arguments: copies of these are results of the call, after the operator's own.
    """

    args: Sequence[Any]
    kwargs: dict[str, Any]
    tensors: int
    outputs: Sequence[bool]
    sizes: bool = False
    stream: int | None = None
    adjoints: Sequence[int] = ()
    wanted: Sequence[int] = ()
    writes: bool = False

    def text(self) -> str:
        """As the packed function is given it."""
        return json.dumps(asdict(self))

    @classmethod
    @functools.lru_cache(maxsize=4096)
    def parse(cls, text: str) -> Request:
        """What `text` said."""
        return cls(**json.loads(text))


def operator_of(name: str) -> str:
    """The operator that a packed function of this module calls: "aten.linalg_qr.default"."""
    return name.removeprefix(BACKWARD).removeprefix(FOUND).removeprefix(PREFIX)


def provide(names: Iterable[str]) -> None:
    """Register those of the packed functions `names` that are of this module, before code that calls them is loaded.

    Raises
    ------
    UnsupportedError
        torch is not installed, or does not know an operator.
    """
    for name in sorted(set(names)):
        if name.startswith(PREFIX) and tvm_ffi.get_global_func(name, allow_missing=True) is None:
            own = {**collectives.FUNCTIONS, **sharding.FUNCTIONS}
            tvm_ffi.register_global_func(name, own.get(name) or _call_of(name))


def warn(names: Sequence[str], where: str) -> None:
    """A FallbackWarning, for whoever calls `where`, if the code that it writes calls any of the packed functions."""
    if names:
        operators = ", ".join(sorted({operator_of(name) for name in names}))
        warnings.warn(
            f"{where}: the model calls operators of torch ({operators}), so that the file can be loaded only where "
            "torch is installed; from_torch(..., fallback='error') refuses such models",
            FallbackWarning,
            stacklevel=3,
        )


def _call_of(name: str) -> Callable[..., None]:
    run = _gradient if name.startswith(BACKWARD) else _found if name.startswith(FOUND) else _forward
    return functools.partial(run, _operator(operator_of(name)))


def _operator(name: str) -> Callable[..., Any]:
    try:
        import torch
    except ImportError as error:
        raise UnsupportedError(
            f"autocast.runtime: the model calls torch's operator {name}, and torch is not installed here; expected "
            "torch beside the runtime. Install it, or import the model with from_torch(..., fallback='error'), which "
            "says what to write differently"
        ) from error
    namespace, operator, overload = name.split(".")
    try:
        found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), operator), overload)
    except AttributeError as error:
        raise UnsupportedError(
            f"autocast.runtime: the model calls torch's operator {name}, which torch {torch.__version__} does not "
            "know; expected what the model was imported with. Import the package that registers the operator first"
        ) from error
    return found


def _forward(operator: Any, text: str, *values: Any) -> None:
    """Run an operator, and write its results to the last tensors."""
    import torch

    request = Request.parse(str(text))
    with torch.no_grad(), _as_asked(operator, request, values) as (given, rest):
        tensors = [torch.from_dlpack(value) for value in given]
        results = _results(_called(operator, request, tensors, _sizes(request, values)))
        _write(operator, results, rest, request.outputs)


def _found(operator: Any, text: str, *values: Any) -> Any:
    """Run an operator, and return copies of its results: some operators return a part of what they are given."""
    import torch

    request = Request.parse(str(text))
    with torch.no_grad(), _as_asked(operator, request, values) as (given, _):
        tensors = [torch.from_dlpack(value) for value in given]
        results = _results(_called(operator, request, tensors, _sizes(request, values)))
        returned = [
            tvm_ffi.from_dlpack(_real(result, is_pairs).clone(memory_format=torch.contiguous_format))
            for result, is_pairs in zip(results, request.outputs, strict=True)
        ]
    return returned[0] if len(returned) == 1 else returned


def _gradient(operator: Any, text: str, *values: Any) -> None:
    """Run an operator again, and write the adjoints of some of its tensors, of those of some of its results."""
    import torch

    request = Request.parse(str(text))
    with _as_asked(operator, request, values) as (given, rest):
        adjoints = [torch.from_dlpack(value) for value in rest[: len(request.adjoints)]]
        tensors = [torch.from_dlpack(value) for value in given]
        computed = adjoints_of(operator, request, tensors, _sizes(request, values), adjoints)
        _write(operator, computed, rest[len(request.adjoints) :], [False] * len(computed))


def adjoints_of(
    operator: Any, request: Request, tensors: Sequence[Any], sizes: Sequence[int], adjoints: Sequence[Any]
) -> Sequence[Any]:
    """The adjoints of those tensors that a request wants, by torch's autograd, of those of results."""
    import torch

    with torch.enable_grad():
        tensors = [t.detach().requires_grad_(place in request.wanted) for place, t in enumerate(tensors)]
        results = _results(_called(operator, request, tensors, sizes))
        given = [
            torch.view_as_complex(adjoint) if request.outputs[place] else adjoint
            for place, adjoint in zip(request.adjoints, adjoints, strict=True)
        ]
        found: Sequence[Any] = torch.autograd.grad(
            [results[place] for place in request.adjoints],
            [tensors[place] for place in request.wanted],
            given,
            allow_unused=True,
            materialize_grads=True,
        )
    return found


@contextlib.contextmanager
def _as_asked(operator: Any, request: Request, values: Sequence[Any]) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
    """The tensors that are passed, and what comes after all that is read; torch computes as it was imported.

    Raises
    ------
    InputError
        torch raised an error, which this one repeats.
    """
    import torch

    end = request.tensors + request.sizes
    with torch.autocast("cpu", enabled=False), contextlib.ExitStack() as stack:
        if request.stream is not None:
            seed, step = torch.from_dlpack(values[end]).tolist()
            stack.enter_context(torch.random.fork_rng(devices=[]))
            digest = hashlib.blake2b(f"{seed} {step} {request.stream}".encode(), digest_size=8).digest()
            torch.manual_seed(int.from_bytes(digest, "little", signed=True))
            end += 1
        try:
            yield values[: request.tensors], values[end:]
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
            raise InputError(
                f"main: torch's operator {operator}, which the model calls, failed: {error}. Expected inputs for which "
                "the torch module runs"
            ) from error


def _sizes(request: Request, values: Sequence[Any]) -> Sequence[int]:
    """The sizes among what is passed."""
    return [int(size) for size in values[request.tensors]] if request.sizes else ()


def _called(operator: Any, request: Request, tensors: Sequence[Any], sizes: Sequence[int]) -> Any:
    args = [value_of(argument, tensors, sizes) for argument in request.args]
    kwargs = {name: value_of(argument, tensors, sizes) for name, argument in request.kwargs.items()}
    return called(operator, request)(*args, **kwargs)


def called(operator: Any, request: Request) -> Callable[..., Any]:
    """What takes the arguments of a request: the operator, or what has it write into copies."""
    if not request.writes:
        return operator
    from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2

    return functools.partial(auto_functionalized_v2, operator)


def value_of(argument: Any, tensors: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """An argument of the operator, from what stands for it in a request."""
    import torch

    if isinstance(argument, list | tuple):
        return [value_of(part, tensors, sizes) for part in argument]
    if not isinstance(argument, dict):
        return argument
    ((kind, value),) = argument.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "columns":
        return tensors[value].mT.contiguous().mT
    if kind == "pairs":
        return torch.view_as_complex(tensors[value])
    if kind == "number":
        return tensors[value].item()
    if kind == "size":
        return sizes[value]
    if kind == "complex":
        return complex(*value)
    return torch.device(value) if kind == "device" else getattr(torch, value)


def _results(result: Any) -> list[Any]:
    """The tensors among what an operator returned, in order."""
    import torch

    flat: list[Any] = []
    for part in result if isinstance(result, list | tuple) else [result]:
        flat += part if isinstance(part, list | tuple) else [part]
    return [part for part in flat if isinstance(part, torch.Tensor)]


def _real(result: Any, is_pairs: bool) -> Any:
    import torch

    return torch.view_as_real(result.resolve_conj()) if is_pairs else result


def _write(operator: Any, results: Sequence[Any], targets: Sequence[Any], pairs: Sequence[bool]) -> None:
    import torch

    for result, target, is_pairs in zip(results, targets, pairs, strict=True):
        out, value = torch.from_dlpack(target), _real(result, is_pairs)
        if value.shape != out.shape:
            raise InputError(
                f"main: torch's operator {operator} computed a tensor of shape {tuple(value.shape)}, expected "
                f"{tuple(out.shape)}, as it was when the model was imported"
            )
        out.copy_(value)
