"""A program: a Relax module, and the same in torch, with how far roundings may take its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tvm import relax, tirx

op = relax.op

#: Half the distance between 1 and the next number, and some more for the arithmetic of one operator.
EPSILON = {"float32": 2.0**-22, "bfloat16": 2.0**-8, "float16": 2.0**-10}
#: Evaluations with random roundings, whose spread says how far the results may be from the exact ones.
_SAMPLES = 4
#: How much further than they spread.
_FACTOR = 6.0


@dataclass(frozen=True)
class Step:
    """One binding: what it is in Relax and in torch, and of which values, by number, it is computed."""

    name: str
    operands: tuple[int, ...]
    relax: Callable[..., relax.Expr]
    torch: Callable[..., torch.Tensor]
    dtype: str
    moves: bool = False


@dataclass
class Program:
    """A function of inputs and parameters; values are numbered: first these, then the results of the steps.

    Attributes
    ----------
    inputs, num_input
        (values, dtype) of each argument of main, and how many of them are inputs: the rest are parameters.
    varying
        Whether the first dimension of every input is known at run time only.
    """

    inputs: list[tuple[torch.Tensor, str]]
    num_input: int
    varying: bool = False
    steps: list[Step] = field(default_factory=list)
    results: tuple[int, ...] = ()

    def module(self) -> Any:
        """The program in Relax."""
        rows = tirx.Var("n", "int64")
        params = []
        for number, (value, dtype) in enumerate(self.inputs):
            shape = list(value.shape)
            if self.varying and number < self.num_input:
                shape[0] = rows
            params.append(relax.Var(f"x{number}", relax.TensorType(shape, dtype)))
        builder = relax.BlockBuilder()
        with builder.function("main", params, attrs={"num_input": self.num_input}):
            with builder.dataflow():
                values: list[relax.Expr] = list(params)
                for step in self.steps:
                    values.append(builder.emit(step.relax(*[values[i] for i in step.operands])))
                results = [builder.emit_output(values[i]) for i in self.results]
            builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
        return builder.get()

    def evaluate(
        self, rounding: Callable[[torch.Tensor, str], torch.Tensor] = lambda x, _: x, leaves: Any = None
    ) -> list[torch.Tensor]:
        """The results in float64; `rounding(value, dtype)` is what becomes of each value."""
        values = list(leaves if leaves is not None else [value for value, _ in self.inputs])
        values = [rounding(x, dtype) for x, (_, dtype) in zip(values, self.inputs, strict=True)]
        for step in self.steps:
            value = step.torch(*[values[i] for i in step.operands])
            values.append(value if step.moves else rounding(value, step.dtype))
        return [values[i] for i in self.results]

    def loss(self) -> Program:
        """A program whose result is one number, in which every element of the first result has a weight of its own."""
        number = self.results[0]
        shape = self.evaluate()[0].shape
        weights = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5

        def weighted(x: relax.Expr) -> relax.Expr:
            return op.sum(op.multiply(x, relax.const(weights.numpy(), "float32")))

        step = Step("loss", (number,), weighted, lambda x: (x * weights.double()).sum(), "float32")
        steps = [*self.steps, step]
        return replace(self, steps=steps, results=(len(self.inputs) + len(steps) - 1,))

    def gradients(self, rounding: Callable[[torch.Tensor, str], torch.Tensor] = lambda x, _: x) -> list[torch.Tensor]:
        """The gradients of the first result, one number, by every argument."""
        leaves = [value.clone().requires_grad_() for value, _ in self.inputs]
        (loss,) = self.evaluate(rounding, leaves)
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]

    def bounds(
        self, amp: str | None, compute: Callable[..., list[torch.Tensor]] | None = None
    ) -> tuple[list[torch.Tensor], list[float]]:
        """What `compute` (the results, if omitted) is exactly, and how far from it each tensor may be everywhere."""
        compute = compute or self.evaluate
        exact = compute()
        allowed = [torch.zeros(()).double() for _ in exact]
        for seed in range(_SAMPLES):
            generator = torch.Generator().manual_seed(seed)

            def rounding(x: torch.Tensor, dtype: str, generator: torch.Generator = generator) -> torch.Tensor:
                if not x.is_floating_point():
                    return x
                epsilon = EPSILON[amp if amp and dtype == "float32" else dtype]
                noise = torch.rand(x.shape, generator=generator, dtype=torch.float64) * 2 - 1
                return x * (1 + epsilon * noise) + 1e-7 * noise * (dtype == "float16" or amp == "float16")

            for number, (value, sample) in enumerate(zip(exact, compute(rounding), strict=True)):
                allowed[number] = torch.maximum(allowed[number], (sample - value).abs().max())
        last = EPSILON[amp or "float32"]
        return exact, [
            float(_FACTOR * spread + 4 * last * value.abs().max() + 1e-6 * value.abs().max() + 1e-30)
            for spread, value in zip(allowed, exact, strict=True)
        ]
