"""Bindings of operators that models rarely have."""

from __future__ import annotations

from tests.fuzz.generator.writer import Dim, NothingFits, Writer


def whole(w: Writer) -> None:
    """Operators of whole tensors."""
    kind = w.one_of(["size", "eye_like", "hint", "no_grad", "wrap", "collapse_like", "log1p", "reverse", "transform"])
    if kind == "size":
        w.bind(f"R.size({w.pick().name})", (), "int64")
    elif kind == "eye_like":
        x = w.pick(lambda v: v.ndim == 2 and all(d.known for d in v.dims))
        w.bind(f"R.eye_like({x.name}, {w.one_of([0, 1])})", x.dims, x.dtype)
    elif kind == "hint":
        x = w.pick()
        w.bind(f'R.hint_on_device({x.name}, R.device("cpu", 0))', x.dims, x.dtype, x.bound)
    elif kind == "no_grad":
        x = w.pick_float()
        w.bind(f"R.grad.{w.one_of(['no_grad', 'start_checkpoint', 'end_checkpoint'])}({x.name})", x.dims, x.dtype)
    elif kind == "wrap":
        x = w.pick_float()
        w.bind(f'R.wrap_param({x.name}, "{w.shared.low}")', x.dims, w.shared.low)
    elif kind == "collapse_like":
        x = w.pick_float(lambda v: v.ndim >= 2 and all(d.known for d in v.dims))
        y = w.pick(lambda v: v.is_float and [d.text for d in v.dims] == [d.text for d in x.dims[1:]])
        w.bind(f"R.collapse_sum_like({x.name}, {y.name})", y.dims, x.dtype)
    elif kind == "log1p":
        x = w.pick_float()
        w.bind(f"R.nn.{w.one_of(['log1p', 'expm1'])}(R.tanh({x.name}))", x.dims, x.dtype)
    elif kind == "reverse":
        x = w.pick(lambda v: v.ndim >= 2 and all(d.known and d.value for d in v.dims))
        lengths = w.index((x.dims[0],), x.dims[1].value)
        w.bind(f"R.reverse_sequence({x.name}, {lengths.name}, seq_axis=1, batch_axis=0)", x.dims, x.dtype, x.bound)
    else:
        x = w.pick(lambda v: v.ndim == 2 and all(d.known and d.value for d in v.dims))
        text = f"R.layout_transform({x.name}, index_map=lambda i, j: (j, i))"
        w.bind(text, x.dims[::-1], x.dtype, x.bound)


def index(w: Writer) -> None:
    """Reading and writing at tuples of indices, and slices of which only running tells where."""
    kind = w.one_of(["index_tensor", "index_put", "dynamic_slice"])
    x = w.pick(lambda v: v.ndim >= 1 and v.size and all(d.known for d in v.dims))
    if kind == "dynamic_slice":
        first = [w.random.randrange(d.value) for d in x.dims]
        last = [w.random.randint(a, d.value) for a, d in zip(first, x.dims, strict=True)]
        numbers = ", ".join(f'K({part}, "int64")' for part in (first, last, [1] * x.ndim))
        dims = tuple(Dim.of(b - a) for a, b in zip(first, last, strict=True))
        shown = ", ".join(d.text for d in dims)
        text = f"R.dynamic_strided_slice({x.name}, {numbers})"
        w.bind(f'R.match_cast({text}, R.Tensor(({shown},), "{x.dtype}"))', dims, x.dtype, x.bound)
        return
    places = [w.index((Dim.of(3),), d.value).name for d in x.dims]
    if kind == "index_tensor":
        depth = w.random.randint(1, x.ndim)
        dims = (Dim.of(3), *x.dims[depth:])
        w.bind(f"R.index_tensor({x.name}, ({', '.join(places[:depth])},))", dims, x.dtype, x.bound)
        return
    if not x.is_float:
        raise NothingFits
    values = w.pick(lambda v: v.dtype == x.dtype and [d.text for d in v.dims] == ["3"])
    text = f"R.index_put({x.name}, ({', '.join(places)},), {values.name}, accumulate={w.chance(2)})"
    w.bind(text, x.dims, x.dtype)


def image(w: Writer) -> None:
    """An image, resized or sampled."""
    x = w.pick_float(lambda v: v.ndim in (4, 5) and all(d.known for d in v.dims[2:]) and all(d.value for d in v.dims))
    n = x.ndim - 2
    out = [w.one_of([1, 2, 3, 5, 8]) for _ in range(n)]
    sizes = f"R.shape({out})"
    if n == 2 and x.dims[0].known and w.chance(3):
        batch, corners = x.dims[0], w.chance(2)
        dims = (batch, Dim.of(2), *map(Dim.of, out))
        matrix = w.bind(f'R.full(R.shape([{batch.text}, 2, 3]), R.const(0.5, "float32"), dtype="float32")',
                        (batch, Dim.of(2), Dim.of(3)), "float32")  # fmt: skip
        grid = w.bind(f"R.image.affine_grid({matrix.name}, {sizes}, align_corners={corners})", dims, "float32")
        if x.dtype == "float32":
            text = f'R.image.grid_sample({x.name}, {grid.name}, method="bilinear", align_corners={corners})'
            w.bind(text, (*x.dims[:2], *map(Dim.of, out)), x.dtype)
        return
    if w.chance(2):
        options = 'method="nearest_neighbor", coordinate_transformation_mode="asymmetric", rounding_method="floor"'
    else:
        mode = w.one_of(["half_pixel", "asymmetric", "align_corners"])
        options = f'method="linear", coordinate_transformation_mode="{mode}"'
    dims, layout = (*x.dims[:2], *map(Dim.of, out)), "NC" + "DHW"[-n:]
    w.bind(f'R.image.resize{n}d({x.name}, {sizes}, layout="{layout}", {options})', dims, x.dtype)


def quantize(w: Writer) -> None:
    """Whole numbers for others, and back."""
    x = w.pick_float(lambda v: v.dtype == "float32" and v.ndim >= 1)
    dtype = w.one_of(["int8", "uint8"])
    numbers = f'R.const(0.125, "float32"), R.const({w.one_of([0, 3])}, "{dtype}")'
    y = w.bind(f'R.quantize({x.name}, {numbers}, axis=0, out_dtype="{dtype}")', x.dims, dtype)
    w.bind(f'R.dequantize({y.name}, {numbers}, axis=0, out_dtype="float32")', x.dims, "float32")
    if x.ndim == 2 and x.size and w.chance(2):
        steps = w.bind(f'R.subtract(R.astype({y.name}, "int32"), R.const(3, "int32"))', x.dims, "int32")
        other = w.bind(f'R.permute_dims(R.astype({y.name}, "int32"))', x.dims[::-1], "int32")
        dims = (x.dims[0], x.dims[0])
        sums = w.bind(f'R.matmul({steps.name}, {other.name}, out_dtype="int32")', dims, "int32")
        w.bind(f'R.multiply(R.astype({sums.name}, "float32"), R.const(0.015625, "float32"))', dims, "float32")


def bias(w: Writer) -> None:
    """Attention with a bias, and a loss of logits and labels."""
    if w.chance(2):
        x = w.pick_float(lambda v: v.ndim == 2 and v.size and v.dims[1].known)
        labels = w.index((x.dims[0],), x.dims[1].value)
        reduction, dtype = w.one_of(["mean", "sum", "none"]), "float64" if x.dtype == "float64" else "float32"
        options = f'ignore_index=-100, label_smoothing={w.one_of([0.0, 0.1])}, reduction="{reduction}"'
        dims = (x.dims[0],) if reduction == "none" else ()
        w.bind(f"R.nn.cross_entropy({x.name}, {labels.name}, {options})", dims, dtype)
        return
    if w.shared.has_vague_types:
        raise NothingFits  # as attention
    x = w.pick_float(lambda v: v.ndim == 4 and v.size)
    batch, length, heads, _ = x.dims
    shape = ", ".join(d.text for d in (batch, heads, length, length))
    mask = w.bind(
        f'R.full(R.shape([{shape}]), R.const(-0.5, "{x.dtype}"), dtype="{x.dtype}")',
        (batch, heads, length, length),
        x.dtype,
    )
    w.bind(f"R.nn.attention_bias({x.name}, {x.name}, {x.name}, {mask.name})", x.dims, x.dtype)
