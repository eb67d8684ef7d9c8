"""Bindings that move elements, or make them of nothing."""

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
