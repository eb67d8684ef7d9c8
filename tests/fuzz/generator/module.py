"""Random modules: their arguments, then binding after binding, then what they return."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import tvm
from tvm import relax
from tvm.script import from_source
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import autocast.operators.own  # noqa: F401  (TVMScript then knows the operators of our own)
from tests.fuzz.generator import elementwise, functions, gradients, indexing, layout, products, rare, rows, structure
from tests.fuzz.generator.writer import Dim, Dims, NothingFits, Shared, Var, Writer

Kind = Callable[[Writer], None]

#: The kinds of bindings, and how often each is drawn beside the others.
KINDS: dict[Kind, int] = {
    elementwise.unary: 8,
    elementwise.binary: 7,
    elementwise.scalar: 4,
    elementwise.fused: 2,
    elementwise.compare: 2,
    elementwise.classify: 1,
    elementwise.logic: 3,
    elementwise.where: 3,
    elementwise.cast: 4,
    elementwise.dropout: 1,
    layout.permute: 4,
    layout.reshape: 5,
    layout.concat: 5,
    layout.stack: 3,
    layout.split: 4,
    indexing.strided_slice: 3,
    layout.rows_like: 3,
    layout.pad: 2,
    layout.pixel_shuffle: 1,
    indexing.take: 3,
    indexing.gather: 2,
    indexing.scatter: 2,
    indexing.search: 3,
    indexing.counted: 1,
    layout.create: 2,
    layout.broadcast_to: 2,
    layout.meshgrid: 1,
    rows.reduction: 6,
    rows.softmax: 3,
    rows.scan: 1,
    rows.median: 1,
    rows.repeated: 2,
    rows.norm: 4,
    rows.loss: 1,
    rows.collapse: 1,
    products.matmul: 4,
    products.transposed: 3,
    products.einsum: 1,
    products.outer: 1,
    products.attention: 2,
    products.convolution: 3,
    products.pooling: 2,
    gradients.activation: 3,
    gradients.rows: 1,
    gradients.norm: 2,
    gradients.sums: 1,
    gradients.attention: 1,
    gradients.windows: 2,
    gradients.losses: 1,
    rare.whole: 3,
    rare.index: 2,
    rare.image: 2,
    rare.quantize: 2,
    rare.bias: 2,
    structure.pack: 4,
    structure.unpack: 4,
    structure.rename: 1,
    structure.shape_value: 2,
    structure.match_cast: 2,
    structure.conditional: 4,
    structure.dataflow: 6,
    functions.function: 4,
    functions.recursion: 2,
    functions.call: 3,
    functions.prim_function: 1,
    functions.closure: 3,
}

_KINDS = [kind for kind, weight in KINDS.items() for _ in range(weight)]
_EXTENTS = (1, 2, 3, 4, 5, 8, 16, 17)


def some_binding(w: Writer) -> None:
    """One binding, or a few that belong together."""
    for _ in range(20):
        before = (
            len(w.lines),
            len(w.pool),
            len(w.shared.functions),
            len(w.shared.callables),
            len(w.locals),
            len(w.sizes),
        )
        state = (w.indent, w.depth, w.in_dataflow)
        pool = list(w.pool)
        try:
            w.one_of(_KINDS)(w)
            return
        except NothingFits:
            del w.lines[before[0] :]
            w.pool = pool
            del w.shared.functions[before[2] :]
            del w.shared.callables[before[3] :]
            del w.locals[before[4] :]
            del w.sizes[before[5] :]
            w.indent, w.depth, w.in_dataflow = state


@dataclass(frozen=True)
class Case:
    """A random module with what it is given, and how it is compiled.

    Attributes
    ----------
    text
        TVMScript; `K(values, dtype)` is a constant of several numbers.
    arguments
        main's, with the values that its extents have when it runs.
    parameters
        How many of them, the last ones, are parameters of the model.
    amp
        The dtype for AutoCast; None where the module has both low ones, which AutoCast refuses.
    fixed
        The arguments' values, where they are not those of the seed.
    """

    seed: int
    text: str
    arguments: tuple[Var, ...]
    parameters: int
    amp: str | None
    fixed: tuple[np.ndarray, ...] | None = None

    def module(self) -> tvm.IRModule:
        """The module."""
        return parse(self.text)

    def values(self) -> list[np.ndarray]:
        """The arguments' values."""
        if self.fixed is not None:
            return list(self.fixed)
        rng = np.random.default_rng(self.seed)
        return [draw(rng, [d.value for d in var.dims], var.dtype, var.bound) for var in self.arguments]


def draw(rng: np.random.Generator, shape: list[int], dtype: str, bound: int = 0) -> np.ndarray:
    """Random values, as numpy holds what TVM takes."""
    import ml_dtypes

    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape), bool)
    if "int" in dtype:
        low, high = (0, bound) if bound else (0 if dtype.startswith("u") else -6, 7)
        return np.asarray(rng.integers(low, high, shape), dtype)
    values = rng.standard_normal(shape) * rng.choice([0.3, 1.0, 1.0, 3.0])
    return np.asarray(values, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def constant(values: object, dtype: str) -> relax.Constant:
    """`K` of the texts."""
    return relax.const(np.array(values, dtype), dtype)


@functools.lru_cache(maxsize=1)  # a case is run several times, and parsing takes a third of that
def parse(text: str) -> tvm.IRModule:
    """The module that a text says."""
    return from_source(text, extra_vars={"I": I, "R": R, "T": T, "K": constant})


def _arguments(random: Random, low: str) -> tuple[list[Var], int]:
    """Inputs, and after them parameters."""
    extents = [Dim.of(random.choice(_EXTENTS)) for _ in range(4)]
    if random.randrange(12) == 0:
        extents[random.randrange(4)] = Dim.of(0)
    dynamic: list[Dim] = []
    if random.randrange(3) == 0:
        dynamic = [Dim(random.choice([1, 2, 3, 6, 7, 19, 0] if random.randrange(6) == 0 else [1, 2, 3, 6, 19]), "n")]
        if random.randrange(3) == 0:
            dynamic.append(Dim(random.choice([1, 4, 5, 11, dynamic[0].value]), "m"))
    names = iter(range(1000))

    def tensor(dims: Dims, dtype: str, bound: int = 0, prefix: str = "x") -> Var:
        return Var(f"{prefix}{next(names)}", dims, dtype, bound)

    a, b, c, d = extents
    first = random.choice([*dynamic, a]) if dynamic else a
    dtype = random.choice(["float32", "float32", "float32", low])
    inputs = [tensor((first, b), dtype)]
    shapes: list[Dims] = [(first, b), (first, c, b), (first, b, c), (first, c, Dim.of(5), Dim.of(6)), (first, c, d, b)]
    shapes += [(b,), (), (first,), (b, a), (Dim.of(1), b), (first, c, Dim.of(3), Dim.of(4), Dim.of(3))]
    if len(dynamic) > 1:
        shapes += [(first, dynamic[1]), (first, dynamic[1], b)] * 2
    for _ in range(random.randint(1, 3)):
        inputs.append(tensor(random.choice(shapes), random.choice([dtype, dtype, dtype, "float32", "int64", "bool"])))
    indices = a.value or 1
    inputs.append(tensor((Dim.of(random.choice([1, 3, 4])),), random.choice(["int64", "int32"]), indices))
    inputs.append(tensor((), "bool", prefix="c"))
    kernel = Dim.of(random.choice([1, 3, 3, 2]))
    weights: list[Dims] = [(b, c), (c, b), (b, b), (b,), (c,), (c,), (Dim.of(4),)]
    weights += [(Dim.of(4), c, kernel, kernel), (c, Dim.of(1), kernel, kernel), (c, c, kernel)]
    weights.append((c, c, kernel, kernel, Dim.of(1)))
    chosen = random.sample(weights, random.randint(2, 6))
    other = random.choice([dtype, dtype, "float32"])
    parameters = [tensor(tuple(shape), other, prefix="w") for shape in chosen]
    return [*inputs, *parameters], len(parameters)


def generate(seed: int) -> Case:
    """The random module of this seed."""
    random = Random(seed)
    low = random.choice(["bfloat16", "bfloat16", "float16"])
    arguments, parameters = _arguments(random, low)
    shared = Shared(random, low)
    w = Writer(shared, arguments, 2)
    for _ in range(random.randint(1, 7)):
        some_binding(w)
    made = [v for v in w.pool if v not in arguments and not v.is_shape] or [v for v in w.pool if not v.is_shape]
    results = random.sample(made, min(len(made), random.choice([1, 1, 2, 3, 4])))
    if made[-1] not in results:
        results.append(made[-1])
    result = (
        results[0].name if len(results) == 1 and random.randrange(2) else f"({', '.join(v.name for v in results)},)"
    )
    sizes = dict.fromkeys([*functions.sizes_of(tuple(arguments)), *w.sizes])
    text = ["@I.ir_module", "class Module:", *shared.functions, "    @R.function"]
    text.append(f"    def main{functions.signature(tuple(arguments), None)}:")
    text += ["        cls = Module"] if shared.functions else []
    text += [f"        {size} = T.int64()" for size in sizes]
    text += [*w.lines, f"        return {result}", ""]
    whole = "\n".join(text)
    mixed = "bfloat16" in whole and "float16" in whole.replace("bfloat16", "")
    amp = None if mixed else "float16" if "float16" in whole.replace("bfloat16", "") else low
    return Case(seed, whole, tuple(arguments), parameters if random.randrange(4) else 0, amp)
