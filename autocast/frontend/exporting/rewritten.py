"""Functions of torch that its export refuses, or writes as something else, as other functions of torch.

While a module is exported inside of `rewritten_functions`, calls of them are calls of what is here. Alpha dropout,
which torch writes as numbers that are 0 or 1, would not be nothing in a model that is evaluated; the others decide by
values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias
from unittest import mock

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor
from torch.backends import opt_einsum
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from autocast.errors import ImportModelError
from autocast.frontend.exporting.items import get_item, set_item
from autocast.frontend.exporting.varying_sizes import VARYING, combinations

#: What selu approaches.
_SELU_LIMIT = -1.7580993408473766


def _alpha_dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = False, inplace: bool = False, *, of_features: bool
) -> torch.Tensor:
    """What keeps mean and variance of what selu computes: a dropped element is the limit of selu, and all are scaled.

    Each of the ones becomes 0 or larger in training, and stays 1 in evaluation.
    """
    if not training or not p:
        return input
    shape = [*input.shape[:2], *(1 for _ in input.shape[2:])] if of_features else input.shape
    kept = F.dropout(input.new_ones(shape), p, True)
    scale = 0.0 if p == 1 else ((1 - p) * (1 + p * _SELU_LIMIT**2)) ** -0.5
    offset = -scale * _SELU_LIMIT * p
    moved = torch.where(kept == 1, input, scale * input + offset)
    result = torch.where(kept == 0, scale * _SELU_LIMIT + offset, moved)
    return input.copy_(result) if inplace else result


def _cov(
    input: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Products of deviations from the weighted means of rows, over what of the weights is left after a correction."""
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    weights = rows.new_ones(rows.shape[1])
    for given in (fweights, aweights):
        weights = weights if given is None else weights * given
    total = weights.sum()
    lost = (weights * aweights).sum() / total if aweights is not None else 1
    deviations = rows - (rows * weights).sum(1, keepdim=True) / total
    products = deviations @ (deviations * weights).t().conj()
    return (products / (total - correction * lost).clamp(min=0)).squeeze()


def _corrcoef(input: torch.Tensor) -> torch.Tensor:
    covariance = _cov(input)
    if covariance.dim() == 0:
        return covariance / covariance
    deviations = covariance.diagonal().real.sqrt()
    correlation = covariance / deviations[:, None] / deviations[None]
    return correlation if correlation.is_complex() else correlation.clamp(-1, 1)


def _combinations(input: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    if r == 0:
        return torch.combinations(input, r, with_replacement)
    if not isinstance(input.shape[0], int):
        return combinations(input, r, with_replacement)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(choose(range(input.shape[0]), r))
    return input[torch.tensor(places, dtype=torch.int64).reshape(len(places), r)]


def _gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """Without torch's look at whether a variance is below 0; a gradient passes those that are too small."""
    if not isinstance(var, torch.Tensor):
        var = var * torch.ones_like(input)
    elif var.shape != input.shape and var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (var.log() + (input - target) ** 2 / var) + (0.5 * math.log(2 * math.pi) if full else 0.0)
    return {"mean": torch.mean, "sum": torch.sum, "none": torch.Tensor.clone}[reduction](loss)


def _resize_as(
    input: torch.Tensor, template: torch.Tensor, *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    return input.resize_(template.shape, **({} if memory_format is None else {"memory_format": memory_format}))


class _LeastSquares:
    """What `torch.linalg.lstsq` returns: of the rest torch.export knows no sizes, which the rank decides."""

    def __init__(self, solution: torch.Tensor) -> None:
        self.solution = solution

    def __getitem__(self, place: Any) -> Any:
        names = torch.return_types.linalg_lstsq.__match_args__[place]
        return tuple(getattr(self, name) for name in names) if isinstance(names, tuple) else getattr(self, names)

    def __getattr__(self, name: str) -> torch.Tensor:
        raise ImportModelError(
            f"from_torch: the module reads {name} of torch.linalg.lstsq, whose sizes the rank decides; expected its "
            "solution alone. Try torch.linalg.matrix_rank, torch.linalg.svdvals or the residuals by hand"
        )


pytree.register_pytree_node(_LeastSquares, lambda found: (list(found[:]), None), lambda fields, _: tuple(fields))


def _lstsq(
    input: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> _LeastSquares:
    """By the pseudo-inverse, which answers what each of the drivers does: the smallest solution, of any rank."""
    is_vector = b.dim() == 1 or (b.dim() == input.dim() - 1 and b.shape == input.shape[:-1])
    solution = torch.linalg.pinv(input, rtol=rcond) @ (b.unsqueeze(-1) if is_vector else b)
    return _LeastSquares(solution.squeeze(-1) if is_vector else solution)


#: What a size is taken for that values decide.
_UNKNOWN = 64


def _as_tensor(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """Of a number that Dynamo varies, too, of which torch would want the value."""
    if isinstance(data, torch.SymInt | torch.SymFloat):
        dtype = dtype or (torch.int64 if isinstance(data, torch.SymInt) else torch.get_default_dtype())
        return torch.scalar_tensor(data, dtype=dtype, device=device)
    return torch.as_tensor(data, dtype=dtype, device=device)


def _einsum(*args: Any) -> torch.Tensor:
    """In the order of products that `opt_einsum` finds for an example's sizes: of sizes it makes numbers."""
    if not opt_einsum.is_available():
        return torch.einsum(*args)
    finds = opt_einsum.get_opt_einsum().contract_path

    def contract_path(equation: str, *operands: torch.Tensor, optimize: Any) -> Any:
        shapes = [
            tuple(size.node.hint or _UNKNOWN if isinstance(size, torch.SymInt) else size for size in operand.shape)
            for operand in operands
        ]
        return finds(equation, *shapes, shapes=True, optimize=optimize)

    with mock.patch.object(opt_einsum, "get_opt_einsum", lambda: SimpleNamespace(contract_path=contract_path)):
        return torch.einsum(*args)


_Lengths: TypeAlias = torch.Tensor | Sequence[int]


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: _Lengths,
    target_lengths: _Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor:
    """torch's own as one operator: its parts have sizes that lengths decide, of which torch.export knows nothing."""
    lengths = [torch.as_tensor(length, dtype=torch.int64) for length in (input_lengths, target_lengths)]
    kind = ("none", "mean", "sum").index(reduction)
    loss: torch.Tensor = torch.ops.autocast.ctc_loss(log_probs, targets, *lengths, blank, kind, zero_infinity)
    return loss


_library = torch.library.Library("autocast", "FRAGMENT")
_library.define(
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, int reduction, "
    "bool zero_infinity) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.impl("ctc_loss", torch.ctc_loss, "CPU")
torch.library.register_fake(
    "autocast::ctc_loss",
    lambda log_probs, targets, inputs, *others: log_probs.new_empty(() if others[2] else inputs.shape),
    lib=_library,
)

#: Operators that stand for others of torch in an exported program: those that are called when the model runs.
CALLED = {"autocast.ctc_loss.default": "aten.ctc_loss.Tensor"}


def _where(condition: torch.Tensor, *choices: Any, **options: Any) -> Any:
    """By bytes, too, which torch takes for truth values, and its export does not."""
    is_mask = condition.dtype == torch.uint8 and (choices or options)
    return torch.where(condition.bool() if is_mask else condition, *choices, **options)


def _where_else(chosen: Any, condition: torch.Tensor, other: Any) -> torch.Tensor:
    return _where(condition, chosen, other)


def _arange(*bounds: Any, **options: Any) -> torch.Tensor:
    """With its numbers, where these are known: torch.export takes what a tensor holds for what it cannot know."""
    result = torch.arange(*bounds, **options)
    if all(type(bound) is int for bound in bounds) and not options:
        result._autocast_numbers = range(*bounds)
    return result


def _set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """`tensor.data = value`, where the value is new: as a write, which torch.export takes for a change of state."""
    if value is tensor:
        return
    if value.shape != tensor.shape or value.dtype != tensor.dtype or isinstance(value, torch.nn.Parameter):
        raise ImportModelError(
            f"`.data` becomes a {value.dtype} of shape {tuple(value.shape)}, and was a {tensor.dtype} of "
            f"{tuple(tensor.shape)}; expected a computed tensor of the same. Leave the assignment out of the module"
        )
    with torch.no_grad():
        tensor.copy_(value)


def _copy(tensor: torch.Tensor, src: torch.Tensor, *options: Any, **named: Any) -> torch.Tensor:
    """Of rows that are repeated already: before 2.12 torch asks whether `(n, 3)` and `(3,)` are equal by n and 3."""
    return tensor.copy_(src.expand_as(tensor) if src.ndim < tensor.ndim else src, *options, **named)


_of_fake_tensors = FakeTensor.tolist


def _tolist(tensor: torch.Tensor) -> Any:
    """The list of numbers that are known, of a list such as the axes `torch.arange(2, x.ndim).tolist()`."""
    numbers = getattr(tensor, "_autocast_numbers", None)
    is_written = tensor.is_inference() or tensor._version  # nobody counts what is written in inference mode
    return _of_fake_tensors(tensor) if numbers is None or is_written else list(numbers)


#: Functions, as a module calls them, and what is called instead.
_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    F.alpha_dropout: partial(_alpha_dropout, of_features=False),
    F.feature_alpha_dropout: partial(_alpha_dropout, of_features=True),
    F.ctc_loss: _ctc_loss,
    F.gaussian_nll_loss: _gaussian_nll_loss,
    torch.arange: _arange,
    torch.as_tensor: _as_tensor,
    torch.combinations: _combinations,
    torch.einsum: _einsum,
    torch.linalg.lstsq: _lstsq,
    torch.where: _where,
    torch.Tensor.where: _where_else,
    **dict.fromkeys((torch.resize_as_, torch.Tensor.resize_as_), _resize_as),
    **dict.fromkeys((torch.cov, torch.Tensor.cov), _cov),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), _corrcoef),
    torch.Tensor.copy_: _copy,
    torch.Tensor.__getitem__: get_item,
    torch.Tensor.__setitem__: set_item,
    torch.Tensor.data.__get__: lambda tensor, *_: tensor.detach(),
    torch.Tensor.data.__set__: _set_data,
    **VARYING,
}


class rewritten_functions(TorchFunctionMode):
    """While this is active, other functions are called instead of those that torch.export does not do justice to."""

    def __enter__(self) -> rewritten_functions:
        self._lists = mock.patch.object(FakeTensor, "tolist", _tolist)
        self._lists.start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._lists.stop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _FUNCTIONS.get(func, func)(*args, **(kwargs or {}))
