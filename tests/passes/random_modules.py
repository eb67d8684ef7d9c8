"""Random well-formed Relax modules for hypothesis, written as TVMScript so that a failing example can be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import tvm
from hypothesis import strategies as st
from tvm.script import from_source

_HEADER = "@I.ir_module\nclass Module:\n"
_WIDTHS = (4, 8)


@dataclass(frozen=True)
class Tensor:
    """A variable of the module that is being written."""

    name: str
    shape: tuple[str | int, ...]
    dtype: str


@dataclass
class Writer:
    """Writes bindings into one function; `pool` holds the tensors that the next binding may use."""

    draw: Callable
    amp: str
    pool: list[Tensor]
    indices: bool = True
    author_casts: bool = True
    casts_in_branches: bool = True
    helper: bool = False
    lines: list[str] = field(default_factory=list)
    indent: int = 2
    count: int = 0
    made: list[Tensor] = field(default_factory=list)
    in_branch: bool = False
    pairs: list[Tensor] = field(default_factory=list)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def bind(self, value: str, shape: tuple, dtype: str) -> Tensor:
        self.count += 1
        tensor = Tensor(f"v{self.count}", shape, dtype)
        self.line(f"{tensor.name} = {value}")
        self.pool.append(tensor)
        self.made.append(tensor)
        return tensor

    def pick(self, condition: Callable[[Tensor], bool] = lambda _: True) -> Tensor | None:
        candidates = [tensor for tensor in self.pool if condition(tensor)]
        # The newest first: chains are longer then, and hypothesis shrinks towards them.
        return self.draw(st.sampled_from(candidates[::-1])) if candidates else None

    def activation(self) -> Tensor:
        tensor = self.pick(lambda t: len(t.shape) == 2 and not t.name.startswith("w"))
        assert tensor is not None
        return tensor

    def like(self, tensor: Tensor) -> Tensor:
        other = self.pick(lambda t: t.shape == tensor.shape and t.dtype == tensor.dtype)
        assert other is not None
        return other

    # -- one binding of each kind --------------------------------------------------------------------------------------

    def matmul(self) -> None:
        x = self.activation()
        w = self.pick(lambda t: len(t.shape) == 2 and t.shape[0] == x.shape[1] and t.dtype == x.dtype)
        if w is None:
            self.unary()
        else:
            self.bind(f"R.matmul({x.name}, {w.name})", (x.shape[0], w.shape[1]), x.dtype)

    def unary(self) -> None:
        x = self.activation()
        name = self.draw(st.sampled_from(["R.nn.relu", "R.exp", "R.nn.softmax", "R.tanh", "R.negative", "R.sqrt"]))
        self.bind(f"{name}({x.name})", x.shape, x.dtype)

    def binary(self) -> None:
        x = self.activation()
        name = self.draw(st.sampled_from(["add", "multiply", "maximum", "subtract", "power"]))
        self.bind(f"R.{name}({x.name}, {self.like(x).name})", x.shape, x.dtype)

    def by_constant(self) -> None:
        x = self.activation()
        value = self.draw(st.sampled_from([0.5, 2.0, 3e38, 1e-30]))
        name = self.draw(st.sampled_from(["multiply", "add", "divide"]))
        # TVM cannot write 3e38 as a float16 literal; the author of a float16 tensor would not either.
        value = value if x.dtype == "float32" else 0.5
        self.bind(f'R.{name}({x.name}, R.const({value}, "{x.dtype}"))', x.shape, x.dtype)

    def bias(self) -> None:
        x = self.activation()
        bias = self.pick(lambda t: t.shape == x.shape[1:] and t.dtype == x.dtype)
        if bias is None:
            self.unary()
        else:
            self.bind(f"R.add({x.name}, {bias.name})", x.shape, x.dtype)

    def layer_norm(self) -> None:
        x = self.activation()
        parameter = self.pick(lambda t: t.shape == x.shape[1:] and t.dtype == x.dtype == "float32")
        if parameter is None:
            self.unary()
        else:
            call = f"R.nn.layer_norm({x.name}, {parameter.name}, {parameter.name}, axes=[-1])"
            self.bind(call, x.shape, x.dtype)

    def reduction(self) -> None:
        x = self.activation()
        total = self.bind(f"R.sum({x.name}, axis=[-1], keepdims=True)", (x.shape[0], 1), x.dtype)
        self.pool.remove(total)
        self.bind(f"R.add({x.name}, {total.name})", x.shape, x.dtype)

    def transpose_twice(self) -> None:
        x = self.activation()
        turned = self.bind(f"R.permute_dims({x.name})", (x.shape[1], x.shape[0]), x.dtype)
        self.pool.remove(turned)
        self.bind(f"R.permute_dims({turned.name})", x.shape, x.dtype)

    def reshape(self) -> None:
        x = self.activation()
        flat = self.bind(f"R.expand_dims({x.name}, axis=0)", (1, *x.shape), x.dtype)
        self.pool.remove(flat)
        self.bind(f"R.squeeze({flat.name}, axis=[0])", x.shape, x.dtype)

    def take(self) -> None:
        x = self.activation()
        self.bind(f"R.take({x.name}, ids, axis=0)", (4, x.shape[1]), x.dtype)

    def where(self) -> None:
        x = self.pick(lambda t: t.shape == (4, 4))
        if x is None:
            self.unary()
        else:
            self.bind(f"R.where(mask, {x.name}, {self.like(x).name})", x.shape, x.dtype)

    def concat_and_split(self) -> None:
        x = self.activation()
        joined = self.bind(f"R.concat(({x.name}, {self.like(x).name}), axis=0)", ("joined",), x.dtype)
        parts = self.bind(f"R.split({joined.name}, 2, axis=0)", ("parts",), x.dtype)
        self.pool.remove(joined)
        self.pool.remove(parts)
        if isinstance(x.shape[0], int):
            for at in self.draw(st.sampled_from([(0,), (1,), (0, 1)])):
                self.bind(f"{parts.name}[{at}]", x.shape, x.dtype)

    def stack(self) -> None:
        x = self.activation()
        stacked = self.bind(f"R.stack(({x.name}, {self.like(x).name}), axis=0)", ("stacked",), x.dtype)
        self.pool.remove(stacked)
        self.bind(f"R.max({stacked.name}, axis=[0])", x.shape, x.dtype)

    def tuple(self) -> None:
        x, y = self.activation(), self.activation()
        pair = self.bind(f"({x.name}, {y.name})", ("pair",), x.dtype)
        self.pool.remove(pair)
        self.pairs.append(pair)
        nested = self.bind(f"({pair.name}, {x.name})", ("nested",), x.dtype)
        self.pool.remove(nested)
        inner = self.bind(f"{nested.name}[0]", ("pair",), x.dtype)
        self.pool.remove(inner)
        self.bind(f"{inner.name}[1]", y.shape, y.dtype)
        if self.draw(st.booleans()):
            self.bind(f"{pair.name}[0]", x.shape, x.dtype)

    def author_cast(self) -> None:
        x = self.pick()
        assert x is not None
        if not self.author_casts or (self.in_branch and not self.casts_in_branches):
            self.unary()
            return
        dtype = self.draw(st.sampled_from([self.amp, "float32"]))
        cast = self.bind(f'R.astype({x.name}, "{dtype}")', x.shape, dtype)
        if self.draw(st.booleans()):
            self.bind(f'R.astype({cast.name}, "float32")', x.shape, "float32")

    def call(self) -> None:
        x = self.pick(lambda t: t.shape == (4, 4) and t.dtype == "float32")
        if x is None or not self.helper:
            self.binary()
        else:
            self.bind(f"cls.helper({x.name})", (4, 4), "float32")

    def some_binding(self) -> None:
        kinds = [self.matmul, self.matmul, self.matmul, self.unary, self.binary, self.by_constant, self.bias]
        kinds += [
            self.layer_norm,
            self.reduction,
            self.transpose_twice,
            self.reshape,
            self.concat_and_split,
            self.stack,
        ]
        kinds += [self.tuple, self.tuple, self.author_cast, self.author_cast, self.author_cast]
        if self.indices:
            kinds += [self.take, self.where, self.call]
        self.draw(st.sampled_from(kinds))()

    # -- larger parts --------------------------------------------------------------------------------------------------

    def conditional(self) -> None:
        """An If: both branches use what is outside, and end with tensors of one type."""
        goal = self.activation()
        outside, pairs = list(self.pool), list(self.pairs)
        self.count += 1
        result = Tensor(f"r{self.count}", goal.shape, goal.dtype)
        self.in_branch = True
        for keyword in ("if c:", "else:"):
            self.line(keyword)
            self.indent += 1
            for _ in range(self.draw(st.integers(0, 2))):
                self.some_binding()
            last = self.draw(st.sampled_from(["R.nn.relu({})", "R.exp({})", "R.add({0}, {0})", "{}"]))
            self.line(f"{result.name} = {last.format(self.like(goal).name)}")
            self.indent -= 1
            self.pool, self.pairs = list(outside), list(pairs)
        self.in_branch = False
        self.pool.append(result)

    def block(self, size: int) -> None:
        """A dataflow block, of which some tensors are seen outside, or a plain one."""
        if self.draw(st.booleans()):
            before, pairs = list(self.pool), list(self.pairs)
            self.line("with R.dataflow():")
            self.indent += 1
            self.made = []
            for _ in range(size):
                self.some_binding()
            real = [tensor for tensor in self.made if tensor in self.pool]
            outputs = self.draw(st.lists(st.sampled_from(real), min_size=1, max_size=3, unique=True)) if real else []
            outputs = outputs or self.made[-1:]
            new_pairs = self.pairs[len(pairs) :][: self.draw(st.integers(0, 1))]
            outputs += new_pairs
            self.pairs = pairs + new_pairs
            self.line(f"R.output({', '.join(tensor.name for tensor in outputs)})")
            self.indent -= 1
            self.pool = before + [tensor for tensor in outputs if tensor in self.pool]
        else:
            for _ in range(size):
                self.some_binding()


def _annotation(tensor: Tensor) -> str:
    shape = ", ".join(f'"{d}"' if isinstance(d, str) else str(d) for d in tensor.shape)
    return f'{tensor.name}: R.Tensor(({shape},), "{tensor.dtype}")'


@st.composite
def modules(
    draw: Callable,
    amp: str = "bfloat16",
    max_blocks: int = 3,
    max_size: int = 4,
    author_casts: bool = True,
    casts_in_branches: bool = True,
) -> tvm.IRModule:
    """Well-formed modules with activations of 4 or a symbolic number of rows, weights, biases and indices."""
    rows: str | int = draw(st.sampled_from([4, 4, "n"]))
    inputs = [Tensor(f"x{width}", (rows, width), "float32") for width in _WIDTHS]
    if author_casts and draw(st.booleans()):
        inputs.append(Tensor("x_low", (rows, 4), amp))
    weights = [Tensor(f"w{a}{b}", (a, b), "float32") for a in _WIDTHS for b in _WIDTHS]
    biases = [Tensor(f"b{width}", (width,), "float32") for width in _WIDTHS]
    parameters = [*inputs, *weights, *biases]
    helper = rows == 4 and draw(st.integers(0, 3)) == 0
    writer = Writer(draw, amp, list(parameters), rows == 4, author_casts, casts_in_branches, helper)
    for _ in range(draw(st.integers(1, max_blocks))):
        if draw(st.integers(0, 3)) == 0:
            writer.conditional()
        writer.block(draw(st.integers(1, max_size)))
    candidates = writer.pairs[::-1] + writer.pool[::-1]
    results = draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=3, unique=True))
    text = _HEADER
    if helper:
        text += '    @R.function\n    def helper(a: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):\n'
        text += "        b = R.matmul(a, a)\n        d = R.nn.relu(b)\n        return d\n\n"
    signature = [*map(_annotation, parameters), 'ids: R.Tensor((4,), "int64")']
    signature += ['mask: R.Tensor((4, 4), "bool")', 'c: R.Tensor((), "bool")']
    names = [tensor.name for tensor in results]
    result = names[0] if len(names) == 1 and draw(st.booleans()) else f"({', '.join(names)},)"
    text += f"    @R.function\n    def main({', '.join(signature)}):\n"
    text += "        cls = Module\n" if helper else ""
    text += "\n".join([*writer.lines, f"        return {result}", ""])
    return from_source(text)
