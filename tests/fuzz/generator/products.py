"""Bindings that multiply matrices or slide windows over images."""

from __future__ import annotations

from tests.fuzz.generator.elementwise import broadcast
from tests.fuzz.generator.writer import Dim, NothingFits, Var, Writer


def matmul(w: Writer) -> None:
    x = w.pick_float(lambda v: v.ndim >= 1)

    def fits(v: Var) -> bool:
        if v.dtype != x.dtype or v.ndim == 0:
            return False
        if v.dims[-2 if v.ndim > 1 else 0].text != x.dims[-1].text:
            return False
        return broadcast(Var("", x.dims[:-2]), Var("", v.dims[:-2])) is not None

    y = w.pick(fits)
    batch = broadcast(Var("", x.dims[:-2]), Var("", y.dims[:-2]))
    assert batch is not None
    dims = (*batch, *(x.dims[-2:-1] if x.ndim > 1 else ()), *(y.dims[-1:] if y.ndim > 1 else ()))
    extra = ', out_dtype="float32"' if x.dtype != "float32" and x.dtype != "float64" and w.chance(4) else ""
    w.bind(f"R.matmul({x.name}, {y.name}{extra})", dims, "float32" if extra else x.dtype)


def transposed(w: Writer) -> None:
    """A product with a transposed operand, as layers of torch have it, with what often follows."""
    x = w.pick_float(lambda v: v.ndim >= 1)
    y = w.pick(lambda v: v.dtype == x.dtype and v.ndim == 2 and v.dims[1].text == x.dims[-1].text)
    dims = (*x.dims[:-1], y.dims[0])
    result = w.bind(f"R.matmul({x.name}, R.permute_dims({y.name}))", dims, x.dtype)
    bias = [
        v for v in w.pool if v.is_tensor and v.dtype == x.dtype and v.ndim == 1 and v.dims[0].text == y.dims[0].text
    ]
    if bias:
        result = w.bind(f"R.add({result.name}, {w.one_of(bias).name})", dims, x.dtype)
    if w.chance(2):
        w.bind(f"R.{w.one_of(['nn.relu', 'nn.gelu', 'nn.silu', 'tanh'])}({result.name})", dims, x.dtype)


def einsum(w: Writer) -> None:
    x = w.pick_float(lambda v: v.ndim == 2)
    y = w.pick(lambda v: v.dtype == x.dtype and v.ndim == 2 and v.dims[0].text == x.dims[1].text)
    if w.chance(2):
        w.bind(f'R.einsum(({x.name}, {y.name}), "ij,jk->ik")', (x.dims[0], y.dims[1]), x.dtype)
    else:
        w.bind(f'R.einsum(({x.name},), "ij->ji")', (x.dims[1], x.dims[0]), x.dtype)


def outer(w: Writer) -> None:
    x = w.pick_float(lambda v: v.ndim == 1)
    y = w.pick(lambda v: v.dtype == x.dtype and v.ndim == 1)
    w.bind(f"R.outer({x.name}, {y.name})", (x.dims[0], y.dims[0]), x.dtype)


def attention(w: Writer) -> None:
    """Attention of a tensor with itself: one operator, or products around a softmax."""
    if w.chance(2) and not w.shared.has_vague_types:  # TVM's type inference crashes where a shape is a variable
        x = w.pick_float(lambda v: v.ndim == 4 and v.size)
        extra = w.one_of(["", "", ', causal_mask="TopLeft"', ', scale=T.FloatImm("float32", 0.25)'])
        w.bind(f"R.nn.attention({x.name}, {x.name}, {x.name}{extra})", x.dims, x.dtype)
        return
    x = w.pick_float(lambda v: v.ndim >= 2 and v.size)
    axes = [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]
    square = (*x.dims[:-1], x.dims[-2])
    scores = w.bind(f"R.matmul({x.name}, R.permute_dims({x.name}, axes={axes}))", square, x.dtype)
    if w.chance(2):
        scores = w.bind(f'R.multiply({scores.name}, R.const(0.25, "{x.dtype}"))', square, x.dtype)
    weights = w.bind(f"R.nn.softmax({scores.name}, axis=-1)", square, x.dtype)
    w.bind(f"R.matmul({weights.name}, {x.name})", x.dims, x.dtype)


def _windowed(size: Dim, kernel: int, stride: int, padding: int, dilation: int = 1) -> Dim:
    return Dim.of((size.value + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1)


def convolution(w: Writer) -> None:
    """A convolution of one to three dimensions, or a transposed one, often with a bias."""
    x = w.pick_float(lambda v: 2 < v.ndim < 6 and all(d.known for d in v.dims[1:]) and all(d.value for d in v.dims))
    n, channels = x.ndim - 2, x.dims[1]
    weights = [
        v
        for v in w.pool
        if v.is_float
        and v.dtype == x.dtype
        and v.ndim == x.ndim
        and v.size
        and all(d.known for d in v.dims)
        and max((d.value for d in v.dims[2:]), default=9) <= 3
    ]
    stride, padding, dilation = w.one_of([1, 1, 2]), w.one_of([0, 1, 1]), w.one_of([1, 1, 1, 2])
    if not w.chance(4):
        y = w.one_of(v for v in weights if channels.value % v.dims[1].value == 0)
        groups = channels.value // y.dims[1].value
        if y.dims[0].value % groups:
            raise NothingFits
        sizes = [_windowed(s, k.value, stride, padding, dilation) for s, k in zip(x.dims[2:], y.dims[2:], strict=True)]
        if any(s.value <= 0 for s in sizes):
            raise NothingFits
        options = f"strides={[stride] * n}, padding={[padding] * 2 * n}, dilation={[dilation] * n}, groups={groups}"
        text = f"R.nn.conv{n}d({x.name}, {y.name}, {options})"
        result = w.bind(text, (x.dims[0], y.dims[0], *sizes), x.dtype)
    else:
        y = w.one_of(v for v in weights if v.dims[0].text == channels.text)
        sizes = [
            Dim.of((s.value - 1) * stride - 2 * padding + k.value) for s, k in zip(x.dims[2:], y.dims[2:], strict=True)
        ]
        if any(s.value <= 0 for s in sizes):
            raise NothingFits
        text = f"R.nn.conv{n}d_transpose({x.name}, {y.name}, strides={[stride] * n}, padding={[padding] * 2 * n})"
        result = w.bind(text, (x.dims[0], y.dims[1], *sizes), x.dtype)
    if w.chance(2):
        shape = ["1", result.dims[1].text, *["1"] * n]
        bias = w.pick(lambda v: v.dtype == x.dtype and v.ndim == 1 and v.dims[0].text == result.dims[1].text)
        w.bind(f"R.add({result.name}, R.reshape({bias.name}, R.shape([{', '.join(shape)}])))", result.dims, x.dtype)


def pooling(w: Writer) -> None:
    x = w.pick_float(lambda v: 2 < v.ndim < 6 and all(d.known for d in v.dims[2:]) and all(d.value for d in v.dims))
    n = x.ndim - 2
    if w.chance(4):
        out = [w.random.randint(1, d.value) for d in x.dims[2:]]
        text = f"R.nn.adaptive_avg_pool{n}d({x.name}, output_size={out})"
        w.bind(text, (*x.dims[:2], *map(Dim.of, out)), x.dtype)
        return
    kernel, stride, padding = w.one_of([1, 2, 3]), w.one_of([1, 2]), w.one_of([0, 0, 1])
    padding = min(padding, kernel // 2)
    sizes = [_windowed(s, kernel, stride, padding) for s in x.dims[2:]]
    if any(s.value <= 0 for s in sizes):
        raise NothingFits
    name = w.one_of(["max", "avg"])
    extra = f", count_include_pad={w.chance(2)}" if name == "avg" else ""
    options = f"pool_size={[kernel] * n}, strides={[stride] * n}, padding={[padding] * 2 * n}{extra}"
    text = f"R.nn.{name}_pool{n}d({x.name}, {options})"
    w.bind(text, (*x.dims[:2], *sizes), x.dtype)
