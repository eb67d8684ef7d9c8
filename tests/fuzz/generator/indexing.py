"""Bindings that read and write elements at indices, and look for them."""

from __future__ import annotations

from tests.fuzz.generator.writer import Dim, NothingFits, Var, Writer


def strided_slice(w: Writer) -> None:
    x = w.pick(lambda v: v.ndim >= 1)
    axis = w.axis(x, lambda d: d.known)
    size = x.dims[axis].value
    first, last = sorted((w.random.randint(0, size), w.random.randint(0, size)))
    stride = w.one_of([1, 1, 2, 3])
    length = len(range(first, last, stride))
    begin, end = (i - size if w.chance(4) and i < size else i for i in (first, last))
    if w.chance(8) and size:
        begin, end, stride, length = size - 1, -size - 1, -1, size
    dims = (*x.dims[:axis], Dim.of(length), *x.dims[axis + 1 :])
    text = (
        f"R.strided_slice({x.name}, axes=[{w.signed(axis, x.ndim)}], begin=[{begin}], end=[{end}], strides=[{stride}])"
    )
    w.bind(text, dims, x.dtype, x.bound)


def take(w: Writer) -> None:
    x = w.pick(lambda v: v.ndim >= 1)
    axis = w.axis(x, lambda d: d.value > 0)
    rank = w.one_of([0, 1, 1, 1, 2])
    dims = tuple(Dim.of(w.one_of([1, 2, 3, 5])) for _ in range(rank))
    existing = [
        v for v in w.pool if v.is_tensor and v.dtype in ("int32", "int64") and 0 < v.bound <= x.dims[axis].value
    ]
    index = w.one_of(existing) if existing and not w.chance(3) else w.index(dims, x.dims[axis].value)
    out = (*x.dims[:axis], *index.dims, *x.dims[axis + 1 :])
    mode = w.one_of(["", "", ', mode="clip"', ', mode="wrap"'])
    w.bind(
        f"R.take({x.name}, {index.name}, axis={w.signed(axis, x.ndim) if not mode else axis}{mode})",
        out,
        x.dtype,
        x.bound,
    )


def gather(w: Writer) -> None:
    """gather_elements and gather_nd."""
    x = w.pick(lambda v: v.ndim >= 1 and v.size > 0 and all(d.known for d in v.dims))
    axis = w.axis(x)
    if w.chance(2):
        dims = tuple(Dim.of(w.random.randint(1, max(1, d.value))) for d in x.dims)
        index = w.index(dims, x.dims[axis].value)
        w.bind(f"R.gather_elements({x.name}, {index.name}, axis={axis})", dims, x.dtype, x.bound)
    else:
        number, depth = w.one_of([1, 3]), w.random.randint(1, x.ndim)
        index = w.index((Dim.of(number), Dim.of(depth)), min(d.value for d in x.dims[:depth]))
        w.bind(f"R.gather_nd({x.name}, {index.name})", (Dim.of(number), *x.dims[depth:]), x.dtype, x.bound)


def scatter(w: Writer) -> None:
    """scatter_elements, scatter_nd, index_put, index_copy, slice_scatter."""
    x = w.pick_float(lambda v: v.ndim >= 1 and v.size > 0 and all(d.known for d in v.dims))
    kind = w.one_of(["elements", "nd", "rows", "slice"])
    axis = w.axis(x)
    size = x.dims[axis].value
    if kind == "slice":
        first = w.random.randrange(size)
        last = w.random.randint(first, size)
        part = (*x.dims[:axis], Dim.of(last - first), *x.dims[axis + 1 :])
        text = f"R.strided_slice({x.name}, axes=[{axis}], begin=[0], end=[{last - first}])"
        source = w.bind(f"R.negative({text})", part, x.dtype)
        w.bind(f"R.slice_scatter({x.name}, {source.name}, {first}, {last}, 1, axis={axis})", x.dims, x.dtype)
        return
    if kind == "rows":
        count = Dim.of(w.random.randint(0, 3))
        rows, numbers = w.index((count,), size), w.index((count,), size)
        part = (*x.dims[:axis], count, *x.dims[axis + 1 :])
        source = w.bind(f"R.negative(R.take({x.name}, {rows.name}, axis={axis}))", part, x.dtype)
        numbers = f'R.subtract({numbers.name}, R.const({size}, "{numbers.dtype}"))' if w.chance(3) else numbers.name
        w.bind(f"R.nn.index_copy({x.name}, {numbers}, {source.name}, axis={axis})", x.dims, x.dtype)
        return
    reduction = w.one_of(["update", "add", "mul", "min", "max"])
    if kind == "elements":
        source = w.one_of(v for v in w.pool if v.same_type(x))
        index = w.index(x.dims, size)
        w.bind(
            f'R.scatter_elements({x.name}, {index.name}, {source.name}, axis={axis}, reduction="{reduction}")',
            x.dims,
            x.dtype,
        )
    else:
        index = w.index((Dim.of(2), Dim.of(1)), x.dims[0].value)
        rows = w.index((Dim.of(2),), x.dims[0].value)
        source = w.bind(f"R.take({x.name}, {rows.name}, axis=0)", (Dim.of(2), *x.dims[1:]), x.dtype)
        w.bind(f'R.scatter_nd({x.name}, {index.name}, {source.name}, reduction="{reduction}")', x.dims, x.dtype)


def search(w: Writer) -> None:
    """Sorting, extremes' places, boundaries."""
    x = w.pick(lambda v: v.ndim >= 1 and v.dtype != "bool" and v.size > 0)
    kind = w.one_of(["argmax", "argmin", "sort", "argsort", "topk", "one_hot", "bucketize", "topk"])
    axis = w.axis(x, lambda d: d.known)
    size = x.dims[axis].value
    if kind in ("argmax", "argmin"):
        keep = w.chance(2)
        dims = (*x.dims[:axis], *([Dim.of(1)] if keep else []), *x.dims[axis + 1 :])
        w.bind(f"R.{kind}({x.name}, axis={w.signed(axis, x.ndim)}, keepdims={keep})", dims, "int64", size)
    elif kind == "sort":
        w.bind(f"R.sort({x.name}, axis={axis}, descending={w.chance(2)})", x.dims, x.dtype, x.bound)
    elif kind == "argsort":
        w.bind(f'R.argsort({x.name}, axis={axis}, descending={w.chance(2)}, dtype="int64")', x.dims, "int64", size)
    elif kind == "topk":
        k = w.random.randint(1, size)
        dims = (*x.dims[:axis], Dim.of(k), *x.dims[axis + 1 :])
        fields = (Var("", dims, x.dtype, x.bound), Var("", dims, "int64", size))
        text = f'R.topk({x.name}, k={k}, axis={axis}, largest={w.chance(2)}, dtype="int64")'
        whole = w.add(Var(w.name("t"), fields=fields), text)
        w.bind(f"{whole.name}[0]", dims, x.dtype, x.bound)
        w.bind(f"{whole.name}[1]", dims, "int64", size)
    elif kind == "one_hot":
        index = w.pick(lambda v: v.dtype in ("int64", "int32") and 0 < v.bound < 12)
        depth = index.bound + w.one_of([0, 1])
        on, off = (f"R.prim_value(T.float32({value}))" for value in (1.5, -0.5))
        text = f"R.one_hot({index.name}, {on}, {off}, depth={depth}, axis=-1)"
        w.bind(text, (*index.dims, Dim.of(depth)), "float32")
    else:
        y = w.pick_float(lambda v: v.dtype == "float32")
        edges = 'K([-1.0, -0.25, 0.5, 1.0], "float32")'
        w.bind(f"R.bucketize({y.name}, {edges}, right={w.chance(2)})", y.dims, "int64", 5)


def counted(w: Writer) -> None:
    """As many places or values as only running tells, and what becomes of them."""
    size = w.name("k")
    if w.chance(2):
        x = w.pick(lambda v: v.ndim >= 1 and all(d.known for d in v.dims))
        w.sizes.append(size)
        found = w.name()
        w.line(f'{found} = R.match_cast(R.nonzero({x.name}), R.Tensor(({x.ndim}, {size}), "int64"))')
        w.bind(f"R.sum({found}, axis=[1])", [Dim.of(x.ndim)], "int64")
        return
    x = w.pick(lambda v: v.ndim >= 1 and not v.is_float and v.dtype != "bool" and all(d.known for d in v.dims))
    w.sizes.append(size)
    found = w.name()
    w.line(f'{found} = R.match_cast(R.unique({x.name}), R.Tensor(({size},), "{x.dtype}"))')
    kind = w.one_of(["sum", "max", "size", "take"])
    if kind == "size":
        w.bind(f"R.shape_to_tensor(R.shape([{size}]))", [Dim.of(1)], "int64")
    elif not x.size:
        raise NothingFits
    elif kind == "take":
        w.bind(f'R.take({found}, R.const(0, "int64"), axis=0)', (), x.dtype, x.bound)
    else:
        w.bind(f"R.{kind}({found})", (), x.dtype)
