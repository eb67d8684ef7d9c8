"""Bindings that move elements, read them at indices or make them of nothing."""

from __future__ import annotations

import itertools

from tests.fuzz.generator.writer import Dim, NothingFits, Var, Writer, count


def _known(dim: Dim) -> bool:
    return dim.known


def permute(w: Writer) -> None:
    x = w.pick(lambda v: v.ndim >= 1)
    axes = list(range(x.ndim))
    w.random.shuffle(axes)
    if w.chance(4):
        w.bind(f"R.permute_dims({x.name})", x.dims[::-1], x.dtype, x.bound)
        return
    w.bind(f"R.permute_dims({x.name}, axes={axes})", [x.dims[a] for a in axes], x.dtype, x.bound)


def reshape(w: Writer) -> None:
    """A reshape of one kind or another."""
    x = w.pick(lambda v: v.size > 0)  # in a new shape TVM takes 0 for "as it was"
    kind = w.one_of(["expand", "merge", "squeeze", "flatten", "split", "minus", "rank2", "batch_flatten"])
    if kind == "expand":
        axis = w.random.randrange(x.ndim + 1)
        dims = (*x.dims[:axis], Dim.of(1), *x.dims[axis:])
        w.bind(f"R.expand_dims({x.name}, axis={w.signed(axis, x.ndim + 1)})", dims, x.dtype, x.bound)
    elif kind == "squeeze":
        axis = w.axis(x, lambda d: d.text == "1")
        dims = (*x.dims[:axis], *x.dims[axis + 1 :])
        w.bind(f"R.squeeze({x.name}, axis=[{w.signed(axis, x.ndim)}])", dims, x.dtype, x.bound)
    elif kind == "flatten":
        dim = Dim.of(1)
        for part in x.dims:
            dim = dim * part if dim.text != "1" else part
        w.bind(f"R.flatten({x.name})", [dim], x.dtype, x.bound)
    elif kind == "batch_flatten":
        if x.ndim < 2:
            raise NothingFits
        dim = Dim.of(1)
        for part in x.dims[1:]:
            dim = dim * part if dim.text != "1" else part
        w.bind(f"R.nn.batch_flatten({x.name})", [x.dims[0], dim], x.dtype, x.bound)
    elif kind in ("merge", "minus"):
        if x.ndim < 2:
            raise NothingFits
        axis = w.random.randrange(x.ndim - 1)
        dims = (*x.dims[:axis], x.dims[axis] * x.dims[axis + 1], *x.dims[axis + 2 :])
        shown = [d.text for d in dims]
        if kind == "minus" and all(d.known for d in dims) and count(dims):
            shown[axis] = "-1"
        target = f"({', '.join(shown)},)" if "-1" in shown else f"R.shape([{', '.join(shown)}])"
        w.bind(f"R.reshape({x.name}, {target})", dims, x.dtype, x.bound)
    elif kind == "split":
        axis = w.axis(x, lambda d: d.known and d.value > 3 and d.value % 2 == 0)
        dims = (*x.dims[:axis], Dim.of(2), Dim.of(x.dims[axis].value // 2), *x.dims[axis + 1 :])
        w.bind(f"R.reshape({x.name}, R.shape([{', '.join(d.text for d in dims)}]))", dims, x.dtype, x.bound)
    else:
        if x.ndim == 0:
            dims = (Dim.of(1),)
        elif x.ndim == 1:
            dims = (Dim.of(1), x.dims[0])
        else:
            dims = (x.dims[-1], *x.dims[:-1])
        w.bind(f"R.reshape({x.name}, R.shape([{', '.join(d.text for d in dims)}]))", dims, x.dtype, x.bound)


def concat(w: Writer) -> None:
    """Tensors joined, from a tuple that is bound to a variable, or not."""
    x = w.pick(lambda v: v.ndim >= 1)
    axis = w.axis(x)

    def fits(v: Var) -> bool:
        return (
            v.dtype == x.dtype
            and v.ndim == x.ndim
            and all(a.text == b.text for k, (a, b) in enumerate(zip(v.dims, x.dims, strict=True)) if k != axis)
        )

    parts = [x, *(w.pick(fits) for _ in range(w.random.randrange(3)))]
    w.random.shuffle(parts)
    total = parts[0].dims[axis]
    for part in parts[1:]:
        total = total + part.dims[axis]
    dims = (*x.dims[:axis], total, *x.dims[axis + 1 :])
    bound = min(p.bound for p in parts) and max(p.bound for p in parts)
    w.bind(f"R.concat({_joined(w, parts)}, axis={w.signed(axis, x.ndim)})", dims, x.dtype, bound)


def _joined(w: Writer, parts: list[Var]) -> str:
    """A tuple of tensors: an expression, a variable, or the field of another tuple."""
    text = f"({', '.join(p.name for p in parts)},)"
    if w.chance(2):
        return text
    whole = w.add(Var(w.name("t"), fields=tuple(parts)), text)
    if w.chance(3):
        outer = w.add(Var(w.name("t"), fields=(whole, parts[0])), f"({whole.name}, {parts[0].name})")
        return f"{outer.name}[0]"
    return whole.name


def stack(w: Writer) -> None:
    x = w.pick()
    parts = [x, *(w.one_of(v for v in w.pool if v.same_type(x)) for _ in range(w.random.randrange(3)))]
    axis = w.random.randrange(x.ndim + 1)
    dims = (*x.dims[:axis], Dim.of(len(parts)), *x.dims[axis:])
    bound = min(p.bound for p in parts) and max(p.bound for p in parts)
    w.bind(f"R.stack({_joined(w, parts)}, axis={w.signed(axis, x.ndim + 1)})", dims, x.dtype, bound)


def split(w: Writer) -> None:
    """Parts of a tensor, some or all of them used."""
    x = w.pick(lambda v: v.ndim >= 1)
    axis = w.axis(x, _known)
    size = x.dims[axis].value
    if size % 2 == 0 and size and w.chance(2):
        at, sizes = "2", [size // 2, size // 2]
    else:
        if size < 2:
            raise NothingFits
        cuts = sorted(w.random.sample(range(1, size), min(size - 1, w.random.choice([1, 1, 2]))))
        at, edges = str(cuts), [0, *cuts, size]
        sizes = [b - a for a, b in itertools.pairwise(edges)]
    fields = [Var("", (*x.dims[:axis], Dim.of(s), *x.dims[axis + 1 :]), x.dtype, x.bound) for s in sizes]
    whole = Var(w.name("t"), fields=tuple(fields))
    w.add(whole, f"R.split({x.name}, {at}, axis={w.signed(axis, x.ndim)})")
    for i in range(len(fields)):
        if not w.chance(3):
            w.bind(f"{whole.name}[{i}]", fields[i].dims, x.dtype, x.bound)


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


def rows_like(w: Writer) -> None:
    """flip, repeat, tile, triangles."""
    x = w.pick(lambda v: v.ndim >= 1)
    kind = w.one_of(["flip", "repeat", "tile", "tril", "triu", "repeat_all"])
    if kind == "flip":
        w.bind(f"R.flip({x.name}, axis={w.axis(x)})", x.dims, x.dtype, x.bound)
    elif kind == "repeat":
        axis, times = w.axis(x), w.one_of([1, 2, 3])
        dims = (*x.dims[:axis], x.dims[axis] * Dim.of(times), *x.dims[axis + 1 :])
        w.bind(f"R.repeat({x.name}, {times}, axis={axis})", dims, x.dtype, x.bound)
    elif kind == "repeat_all":
        if not all(d.known for d in x.dims):
            raise NothingFits
        w.bind(f"R.repeat({x.name}, 2)", [Dim.of(2 * x.size)], x.dtype, x.bound)
    elif kind == "tile":
        times_ = [w.one_of([1, 2, 1]) for _ in x.dims]
        dims = tuple(d * Dim.of(t) if t > 1 else d for d, t in zip(x.dims, times_, strict=True))
        w.bind(f"R.tile({x.name}, ({', '.join(map(str, times_))},))", dims, x.dtype, x.bound)
    else:
        if x.ndim < 2:
            raise NothingFits
        w.bind(f"R.{kind}({x.name}, {w.one_of([0, 0, 1, -1])})", x.dims, x.dtype)


def pad(w: Writer) -> None:
    if w.shared.has_vague_types:
        raise NothingFits  # TVM's type inference crashes where a shape is a variable
    x = w.pick_float(lambda v: v.ndim >= 1)
    widths = [w.one_of([0, 0, 1, 2]) if d.known else 0 for d in x.dims for _ in range(2)]
    mode, value = "constant", w.one_of([0.0, 0.0, 1.5, -2.0])
    if w.chance(4) and all(d.known and d.value > 2 for d in x.dims):
        mode, value = w.one_of(["reflect", "replicate", "circular"]), 0.0
    dims = [d + Dim.of(widths[2 * i] + widths[2 * i + 1]) if d.known else d for i, d in enumerate(x.dims)]
    w.bind(f'R.nn.pad({x.name}, pad_width={widths}, pad_mode="{mode}", pad_value={value})', dims, x.dtype)


def pixel_shuffle(w: Writer) -> None:
    x = w.pick_float(lambda v: v.ndim == 4 and v.dims[1].known and v.dims[1].value % 4 == 0 and v.dims[1].value)
    b, c, h, v = x.dims
    two = Dim.of(2)
    w.bind(f"R.nn.pixel_shuffle({x.name}, upscale_factor=2)", [b, Dim.of(c.value // 4), h * two, v * two], x.dtype)


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
    """scatter_elements, scatter_nd, index_put, slice_scatter."""
    x = w.pick_float(lambda v: v.ndim >= 1 and v.size > 0 and all(d.known for d in v.dims))
    kind = w.one_of(["elements", "nd", "slice"])
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


def create(w: Writer) -> None:
    """A tensor of nothing, or of a shape only."""
    x = w.pick()
    dtype = w.one_of(["float32", "float32", w.shared.low, "int64", "bool"])
    shape = f"R.shape([{', '.join(d.text for d in x.dims)}])"
    kind = w.one_of(["zeros", "ones", "full", "like", "full_like", "arange", "eye", "hamming"])
    if kind in ("zeros", "ones"):
        w.bind(f'R.{kind}({shape}, "{dtype}")', x.dims, dtype)
    elif kind == "full":
        value = {"int64": "2", "bool": "True"}.get(dtype, "1.5")
        w.bind(f'R.full({shape}, R.const({value}, "{dtype}"), dtype="{dtype}")', x.dims, dtype)
    elif kind == "like":
        w.bind(f"R.{w.one_of(['zeros_like', 'ones_like'])}({x.name})", x.dims, x.dtype)
    elif kind == "full_like":
        y = w.pick_float()
        w.bind(f'R.full_like({y.name}, R.const(-0.75, "{y.dtype}"))', y.dims, y.dtype)
    elif kind == "arange":
        length = w.one_of([1, 3, 4, 8])
        dtype = w.one_of(["int64", "int32", "float32"])
        w.bind(f'R.arange(0, {length}, 1, "{dtype}")', [Dim.of(length)], dtype, length if dtype != "float32" else 0)
    elif kind == "eye":
        rows, columns = w.one_of([1, 2, 4]), w.one_of([1, 3, 4])
        w.bind(
            f'R.eye({rows}, {columns}, {w.one_of([0, 1, -1])}, dtype="float32")',
            map(Dim.of, (rows, columns)),
            "float32",
        )
    else:
        numbers = ", ".join(f"R.prim_value({n})" for n in (5, 1, "T.float32(0.54)", "T.float32(0.46)"))
        text = f'R.hamming_window({numbers}, dtype="float32")'
        w.bind(text, [Dim.of(5)], "float32")


def broadcast_to(w: Writer) -> None:
    x = w.pick()
    dims = tuple(Dim.of(w.one_of([2, 3])) if d.text == "1" and w.chance(2) else d for d in x.dims)
    if w.chance(3):
        dims = (Dim.of(w.one_of([1, 2])), *dims)
    w.bind(f"R.broadcast_to({x.name}, R.shape([{', '.join(d.text for d in dims)}]))", dims, x.dtype, x.bound)


def meshgrid(w: Writer) -> None:
    x = w.pick(lambda v: v.ndim == 1)
    y = w.pick(lambda v: v.ndim == 1 and v.dtype == x.dtype)
    dims = (x.dims[0], y.dims[0])
    fields = tuple(Var("", dims, x.dtype, v.bound) for v in (x, y))
    whole = w.add(Var(w.name("t"), fields=fields), f'R.meshgrid(({x.name}, {y.name}), indexing="ij")')
    at = w.one_of([0, 1])
    w.bind(f"{whole.name}[{at}]", dims, x.dtype, fields[at].bound)
