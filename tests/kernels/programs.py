"""Random programs: each is a Relax module, and the same in torch, with how far roundings may take its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from tvm import relax, tirx

from autocast.ir import shape_of

op = relax.op

#: Half the distance between 1 and the next number, and some more for the arithmetic of one operator.
EPSILON = {"float32": 2.0**-22, "bfloat16": 2.0**-8, "float16": 2.0**-10}
#: Evaluations with random roundings, whose spread says how far the results may be from the exact ones.
_SAMPLES = 4
#: How much further than they spread.
_FACTOR = 6.0
_EXTENTS = (1, 2, 3, 5, 8, 16, 17, 33)
_TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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


def _like(expr: relax.Expr) -> list:
    shape = shape_of(expr)
    assert shape is not None
    return list(shape)


class Writer:
    """Draws steps; `values` are the program's values at example inputs, which say shapes and sizes."""

    def __init__(self, draw: Callable, program: Program, low: str, differentiable: bool) -> None:
        self.draw, self.program, self.low, self.differentiable = draw, program, low, differentiable
        self.values = [value for value, _ in program.inputs]
        self.dtypes = [dtype for _, dtype in program.inputs]

    def one_of(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def pick(self, condition: Callable[[torch.Tensor], bool] = lambda _: True) -> int | None:
        """The number of some float tensor; late ones are likelier."""
        fits = [
            i
            for i in range(len(self.values))
            if self.values[i].is_floating_point() and (i < self.program.num_input or i >= len(self.program.inputs))
            if condition(self.values[i])
        ]
        return self.one_of(fits[::-1][:4] + fits) if fits else None

    def add(self, name: str, operands: tuple[int, ...], made: Any, reference: Any, *, moves: bool = False) -> int:
        value = reference(*[self.values[i] for i in operands])
        dtype = self.dtypes[operands[0]]
        self.program.steps.append(Step(name, operands, made, reference, dtype, moves))
        self.values.append(value)
        self.dtypes.append(dtype)
        return len(self.values) - 1

    def same_dtype(self, i: int, j: int) -> int:
        """The value `j`, cast to the dtype of `i`."""
        if self.dtypes[i] == self.dtypes[j]:
            return j
        return self.cast(j, self.dtypes[i])

    def cast(self, i: int, dtype: str) -> int:
        number = self.add("astype", (i,), lambda x: op.astype(x, dtype), lambda x: x)
        self.dtypes[number] = dtype
        last = self.program.steps[-1]
        # The rounding may go the other way where the value was rounded before: as low as the narrower of the two.
        low = dtype if dtype != "float32" else self.dtypes[i]
        self.program.steps[-1] = Step(last.name, last.operands, last.relax, last.torch, low)
        return number

    def axis(self, i: int, *, fixed: bool = False) -> int:
        """An axis of a value; not the varying one where the operator needs its extent."""
        first = 1 if (fixed and self.program.varying) else 0
        return self.draw(st.integers(min(first, self.values[i].ndim - 1), self.values[i].ndim - 1))

    # ---- steps ----

    def unary(self) -> None:
        i = self.pick()
        assert i is not None
        smooth = {
            "tanh": (op.tanh, torch.tanh),
            "sigmoid": (op.sigmoid, torch.sigmoid),
            "gelu": (op.nn.gelu, F.gelu),
            "gelu_tanh": (op.nn.gelu_tanh, lambda x: F.gelu(x, approximate="tanh")),
            "silu": (op.nn.silu, F.silu),
            "negative": (op.negative, torch.neg),
            "sin": (op.sin, torch.sin),
            "erf": (op.erf, torch.erf),
        }
        kinked = {"relu": (op.nn.relu, F.relu), "abs": (op.abs, torch.abs)}
        if float(self.values[i].abs().max()) < 4:
            smooth |= {"exp": (op.exp, torch.exp), "square": (op.square, torch.square)}
            smooth |= {"softplus": (op.nn.softplus, F.softplus)}
        table = smooth if self.differentiable else {**smooth, **kinked}
        name = self.one_of(table)
        self.add(name, (i,), *table[name])

    def scalar(self) -> None:
        i = self.pick()
        assert i is not None
        number, dtype = self.one_of([0.5, 2.0, -0.125, 1.0, 3.0]), self.dtypes[i]
        name = self.one_of(["add", "multiply", "divide", "subtract"])
        self.add(name, (i,), lambda x: getattr(op, name)(x, relax.const(number, dtype)), _scalars[name](number))

    def binary(self) -> None:
        i = self.pick()
        assert i is not None
        shape = tuple(self.values[i].shape)

        def broadcasts(other: torch.Tensor) -> bool:
            if self.program.varying and other.ndim == len(shape) and other.shape[:1] != shape[:1]:
                return False
            try:
                return torch.broadcast_shapes(shape, tuple(other.shape)) is not None
            except RuntimeError:
                return False

        j = self.pick(broadcasts)
        assert j is not None
        j = self.same_dtype(i, j)
        names = ["add", "subtract", "multiply"] + ([] if self.differentiable else ["maximum", "minimum"])
        name = self.one_of(names)
        pair = (i, j) if self.draw(st.booleans()) else (j, i)
        self.add(name, pair, getattr(op, name), getattr(torch, name))

    def with_parameter(self) -> None:
        """A vector along the last axis, as a bias or a factor."""
        i = self.pick()
        assert i is not None
        parameters = self.parameters(lambda p: p.ndim == 1 and p.shape[0] == self.values[i].shape[-1])
        if not parameters or not self.values[i].ndim:
            return self.unary()
        j = self.same_dtype(i, self.one_of(parameters))
        name = self.one_of(["add", "multiply"])
        self.add(name, (i, j), getattr(op, name), getattr(torch, name))
        return None

    def parameters(self, condition: Callable[[torch.Tensor], bool]) -> list[int]:
        numbers = range(self.program.num_input, len(self.program.inputs))
        return [i for i in numbers if self.values[i].is_floating_point() and condition(self.values[i])]

    def matmul(self) -> None:
        i = self.pick(lambda x: x.ndim >= 2)
        if i is None:
            return self.unary()
        weights = self.parameters(lambda p: p.ndim == 2 and self.values[i].shape[-1] in p.shape)
        if not weights:
            return self.unary()
        j = self.same_dtype(i, self.one_of(weights))
        if self.values[j].shape[0] != self.values[i].shape[-1]:
            self.add("matmul", (i, j), lambda x, w: op.matmul(x, op.permute_dims(w)), lambda x, w: x @ w.T)
        else:
            self.add("matmul", (i, j), op.matmul, torch.matmul)
        return None

    def attention(self) -> None:
        """Scores of a tensor with itself, and their softmax, scaled."""
        i = self.pick(lambda x: x.ndim >= 2)
        if i is None:
            return self.unary()
        order = [*range(self.values[i].ndim - 2), -1, -2]
        positive = [axis % self.values[i].ndim for axis in order]
        scores = self.add(
            "scores",
            (i, i),
            lambda x, y: op.matmul(x, op.permute_dims(y, positive)),
            lambda x, y: x @ y.transpose(-1, -2),
        )
        if self.draw(st.booleans()):
            scale = self.one_of([0.25, 0.5])
            scores = self.add(
                "scale",
                (scores,),
                lambda x: op.multiply(x, relax.const(scale, self.dtypes[i])),
                lambda x: x * scale,
            )
        softmax = self.add("softmax", (scores,), lambda x: op.nn.softmax(x, -1), lambda x: x.softmax(-1))
        self.add("weighted", (softmax, i), op.matmul, torch.matmul)
        return None

    def reduction(self) -> None:
        i = self.pick(lambda x: x.ndim >= 1)
        if i is None:
            return self.unary()
        rank = self.values[i].ndim
        axes = sorted(self.draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=rank)))
        keep = self.draw(st.booleans()) or (self.program.varying and 0 in axes)
        table = {
            "sum": (op.sum, torch.sum),
            "mean": (op.mean, torch.mean),
            "variance": (op.variance, lambda x, dim, keepdim: x.var(dim, correction=0, keepdim=keepdim)),
        }
        if not self.differentiable:
            table |= {"max": (op.max, torch.amax), "min": (op.min, torch.amin)}
        name = self.one_of(table)
        made, reference = table[name]
        self.add(name, (i,), lambda x: made(x, axes, keep), lambda x: reference(x, dim=axes, keepdim=keep))
        return None

    def row(self) -> None:
        i = self.pick(lambda x: x.ndim >= 1 and x.numel() > 0)
        if i is None:
            return self.unary()
        axis = self.axis(i)
        name = self.one_of(["softmax", "log_softmax", "cumsum"])
        made = {"softmax": op.nn.softmax, "log_softmax": op.nn.log_softmax, "cumsum": op.cumsum}[name]
        self.add(name, (i,), lambda x: made(x, axis), lambda x: getattr(torch, name)(x, axis))
        return None

    def norm(self) -> None:
        i = self.pick(lambda x: x.ndim >= 1)
        if i is None:
            return self.unary()
        vectors = self.parameters(lambda p: p.shape == self.values[i].shape[-1:])
        if not vectors:
            return self.unary()
        gamma, beta = (self.same_dtype(i, self.one_of(vectors)) for _ in range(2))
        if self.draw(st.booleans()):
            self.add(
                "layer_norm",
                (i, gamma, beta),
                lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1], epsilon=1e-2),
                lambda x, g, b: F.layer_norm(x, x.shape[-1:], g, b, 1e-2),
            )
        else:
            self.add(
                "rms_norm",
                (i, gamma),
                lambda x, g: op.nn.rms_norm(x, g, [-1], 1e-2),
                lambda x, g: F.rms_norm(x, x.shape[-1:], g, 1e-2),
            )
        return None

    def permute(self) -> None:
        i = self.pick(lambda x: x.ndim >= 2)
        if i is None:
            return self.unary()
        axes = list(self.draw(st.permutations(range(self.values[i].ndim))))
        if self.program.varying and axes[0] != 0:
            axes = [0, *[axis for axis in axes if axis != 0]]
        self.add("permute", (i,), lambda x: op.permute_dims(x, axes), lambda x: x.permute(axes), moves=True)
        return None

    def reshape(self) -> None:
        i = self.pick()
        assert i is not None
        rank = self.values[i].ndim
        kind = self.one_of(["expand", "merge", "squeeze"])
        if kind == "expand" and rank < 4:
            axis = self.draw(st.integers(1 if self.program.varying else 0, rank))
            self.add("expand", (i,), lambda x: op.expand_dims(x, axis), lambda x: x.unsqueeze(axis), moves=True)
        elif kind == "merge" and rank >= 3:
            axis = self.draw(st.integers(1 if self.program.varying else 0, rank - 2))

            def merged(shape: Any) -> list:
                return [*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]]

            self.add(
                "merge",
                (i,),
                lambda x: op.reshape(x, merged(_like(x))),
                lambda x: x.reshape(merged(tuple(x.shape))),
                moves=True,
            )
        else:
            ones = [a for a, size in enumerate(self.values[i].shape) if size == 1 and (a or not self.program.varying)]
            if ones:
                axis = self.one_of(ones)
                self.add("squeeze", (i,), lambda x: op.squeeze(x, [axis]), lambda x: x.squeeze(axis), moves=True)

    def concat(self) -> None:
        i = self.pick(lambda x: x.ndim >= 1 and x.numel() < 5000)
        if i is None:
            return self.unary()
        axis = self.axis(i, fixed=True)
        if self.program.varying and axis == 0:
            return self.unary()
        shape = list(self.values[i].shape)

        def fits(other: torch.Tensor) -> bool:
            return other.ndim == len(shape) and all(
                a == b for k, (a, b) in enumerate(zip(other.shape, shape, strict=True)) if k != axis
            )

        j = self.pick(fits)
        assert j is not None
        j = self.same_dtype(i, j)
        self.add(
            "concat", (i, j), lambda x, y: op.concat([x, y], axis), lambda x, y: torch.cat([x, y], axis), moves=True
        )
        return None

    def slice(self) -> None:
        i = self.pick(lambda x: x.ndim >= 1)
        if i is None:
            return self.unary()
        axis = self.axis(i, fixed=True)
        if self.program.varying and axis == 0:
            return self.unary()
        size = self.values[i].shape[axis]
        first = self.draw(st.integers(0, size - 1))
        last = self.draw(st.integers(first + 1, size))
        stride = self.one_of([1, 1, 2])
        index = (slice(None),) * axis + (slice(first, last, stride),)
        self.add(
            "slice",
            (i,),
            lambda x: op.strided_slice(x, [axis], [first], [last], [stride]),
            lambda x: x[index],
            moves=True,
        )
        return None

    def split(self) -> None:
        i = self.pick(lambda x: x.ndim >= 1)
        if i is None:
            return self.unary()
        axis = self.axis(i, fixed=True)
        size = self.values[i].shape[axis]
        if (self.program.varying and axis == 0) or size < 2:
            return self.unary()
        at = self.draw(st.integers(1, size - 1))
        part = self.one_of([0, 1])
        self.add(
            "split",
            (i,),
            lambda x: relax.TupleGetItem(op.split(x, [at], axis), part),
            lambda x: x.tensor_split([at], axis)[part],
            moves=True,
        )
        return None

    def take(self) -> None:
        i = self.pick(lambda x: x.ndim >= 1)
        if i is None:
            return self.unary()
        axis = self.axis(i, fixed=True)
        if self.program.varying and axis == 0:
            return self.unary()
        size = self.values[i].shape[axis]
        numbers = self.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=9))
        index = torch.tensor(numbers)
        self.add(
            "take",
            (i,),
            lambda x: op.take(x, relax.const(index.numpy(), "int64"), axis),
            lambda x: x.index_select(axis, index),
            moves=True,
        )
        return None

    def where(self) -> None:
        i = self.pick(lambda x: x.ndim >= 1 and x.shape[-1] > 1)
        if i is None:
            return self.unary()
        length, number = self.values[i].shape[-1], self.one_of([0.0, -3.0])
        mask = torch.tensor(self.draw(st.lists(st.booleans(), min_size=length, max_size=length)))
        dtype = self.dtypes[i]
        self.add(
            "where",
            (i,),
            lambda x: op.where(relax.const(mask.numpy(), "bool"), x, relax.const(number, dtype)),
            lambda x: torch.where(mask, x, torch.tensor(number, dtype=x.dtype)),
            moves=True,
        )
        return None

    def round_trip(self) -> None:
        i = self.pick()
        assert i is not None
        self.cast(self.cast(i, self.low), "float32")

    def image(self) -> None:
        """A convolution or a pooling of a tensor of four dimensions."""
        i = self.pick(lambda x: x.ndim == 4 and min(x.shape[2:]) >= 2)
        if i is None:
            return self.unary()
        channels = self.values[i].shape[1]
        height, width = self.values[i].shape[2:]
        most = min(height, width) + 2
        weights = self.parameters(lambda p: p.ndim == 4 and p.shape[1] == channels and p.shape[2] <= most)
        if weights and self.draw(st.booleans()):
            j = self.same_dtype(i, self.one_of(weights))
            stride = self.one_of([1, 2])
            self.add(
                "conv2d",
                (i, j),
                lambda x, w: op.nn.conv2d(x, w, strides=stride, padding=1),
                lambda x, w: F.conv2d(x, w, stride=stride, padding=1),
            )
        elif self.differentiable or self.draw(st.booleans()):
            self.add("avg_pool2d", (i,), lambda x: op.nn.avg_pool2d(x, (2, 2), (1, 1)), lambda x: F.avg_pool2d(x, 2, 1))
        else:
            self.add("max_pool2d", (i,), lambda x: op.nn.max_pool2d(x, (2, 2), (2, 2)), lambda x: F.max_pool2d(x, 2, 2))
        return None

    def step(self) -> None:
        """Some step."""
        kinds = [self.unary, self.unary, self.scalar, self.binary, self.binary, self.with_parameter, self.matmul]
        kinds += [self.matmul, self.attention, self.reduction, self.row, self.norm, self.permute, self.reshape]
        kinds += [self.concat, self.slice, self.split, self.take, self.where, self.image]
        kinds += [] if self.differentiable else [self.round_trip]
        self.one_of(kinds)()


_scalars: dict[str, Callable[[float], Callable[[torch.Tensor], torch.Tensor]]] = {
    "add": lambda number: lambda x: x + number,
    "subtract": lambda number: lambda x: x - number,
    "multiply": lambda number: lambda x: x * number,
    "divide": lambda number: lambda x: x / number,
}


@st.composite
def programs(draw: Callable, low: str, *, most: int = 8, differentiable: bool = False) -> Program:
    """Programs of at most `most` steps, some with tensors in `low`; smooth ones in float32, if `differentiable`."""
    varying = not differentiable and draw(st.integers(0, 2)) == 0
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    rows, width, other = (draw(st.sampled_from(_EXTENTS)) for _ in range(3))
    rows = 37 if varying else rows  # equal to no other extent: whether run-time ones are equal cannot be known
    middle = draw(st.sampled_from(_EXTENTS[1:6]))
    shapes: list[tuple[int, ...]] = [(rows, width)]
    shapes += draw(
        st.sampled_from([[], [(rows, middle, width)], [(rows, middle, 6, 7)], [(rows, 1, width), (rows, 2, 5, width)]])
    )
    dtype = "float32" if differentiable else draw(st.sampled_from(["float32", "float32", low]))
    inputs = []
    for number, shape in enumerate(shapes):
        value = torch.randn(shape, generator=generator)
        inputs.append((value.to(_TORCH[dtype if number else "float32"]).double(), dtype if number else "float32"))
    weights = [(width, other), (other, width), (width,), (other,), (4, middle, 3, 3), (middle, 4, 1, 1)]
    parameters = [(torch.randn(shape, generator=generator).double() * 0.3, "float32") for shape in weights]
    parameters = [(value.float().double(), kind) for value, kind in parameters]
    program = Program([*inputs, *parameters], len(inputs), varying)
    writer = Writer(draw, program, low, differentiable)
    for _ in range(draw(st.integers(1, most))):
        writer.step()
    made = range(len(program.inputs), len(writer.values))
    if not made:
        writer.unary()
        made = range(len(program.inputs), len(writer.values))
    results = draw(st.lists(st.sampled_from(list(made)[::-1]), max_size=2, unique=True))
    program.results = tuple(dict.fromkeys([made[-1], *results]))
    return program
