"""Bindings that are about the module and not about numbers: tuples, shapes, conditionals, functions, blocks."""

from __future__ import annotations

from tests.fuzz.generator.writer import Dim, NothingFits, Var, Writer


def pack(w: Writer) -> None:
    """A tuple bound to a variable, nested now and then."""
    parts = [w.pick() for _ in range(w.random.randint(1, 3))]
    tuples = [v for v in w.pool if v.fields is not None]
    if tuples and w.chance(2):
        parts.append(w.one_of(tuples))
    w.random.shuffle(parts)
    text = f"({', '.join(p.name for p in parts)},)"
    w.add(Var(w.name("t"), fields=tuple(parts)), text)


def unpack(w: Writer) -> None:
    """A field of a tuple."""
    whole = w.one_of(v for v in w.pool if v.fields)
    assert whole.fields is not None
    at = w.random.randrange(len(whole.fields))
    w.add(whole.fields[at].named(w.name()), f"{whole.name}[{at}]")


def rename(w: Writer) -> None:
    """A second name of a variable."""
    x = w.one_of(w.pool)
    w.add(x.named(w.name()), x.name)


def shape_value(w: Writer) -> None:
    """A shape bound to a variable, and what one does with it."""
    x = w.pick(lambda v: v.ndim >= 1)
    w.shared.has_vague_types = True
    s = w.add(Var(w.name("s"), x.dims, is_shape=True), f"R.shape_of({x.name})", keep=False)
    kind = w.one_of(["zeros", "reshape", "tensor", "round_trip", "broadcast"])
    if kind == "reshape" and not x.size:
        raise NothingFits
    if kind == "zeros":
        dtype = w.one_of(["float32", "int64"])
        w.bind(f'R.{w.one_of(["zeros", "ones"])}({s.name}, "{dtype}")', x.dims, dtype)
    elif kind == "reshape":
        flat = Dim.of(1)
        for dim in x.dims:
            flat = flat * dim if flat.text != "1" else dim
        y = w.bind(f"R.reshape({x.name}, R.shape([{flat.text}]))", [flat], x.dtype, x.bound)
        w.bind(f"R.reshape({y.name}, {s.name})", x.dims, x.dtype, x.bound)
    elif kind == "tensor":
        w.bind(f"R.shape_to_tensor({s.name})", [Dim.of(x.ndim)], "int64")
    elif kind == "broadcast":
        y = w.pick(lambda v: v.ndim == 0)
        w.bind(f"R.broadcast_to({y.name}, {s.name})", x.dims, y.dtype, y.bound)
    else:
        tensor = w.bind(f"R.shape_to_tensor({s.name})", [Dim.of(x.ndim)], "int64")
        back = w.add(Var(w.name("s"), x.dims, is_shape=True), f"R.tensor_to_shape({tensor.name})", keep=False)
        dims = tuple(_new_size(w, dim) for dim in x.dims)
        shown = ", ".join(d.text for d in dims)
        matched = w.add(
            Var(w.name("s"), dims, is_shape=True), f"R.match_cast({back.name}, R.Shape([{shown}]))", keep=False
        )
        w.bind(f'R.full({matched.name}, R.const(0.5, "float32"), dtype="float32")', dims, "float32")


def _new_size(w: Writer, dim: Dim) -> Dim:
    name = w.name("k")
    w.sizes.append(name)
    return Dim(dim.value, name)


def match_cast(w: Writer) -> None:
    """A tensor whose extents get names of their own, or numbers."""
    x = w.pick(lambda v: v.ndim >= 1)
    if w.chance(2):
        dims = tuple(Dim.of(d.value) for d in x.dims)
    else:
        axis = w.axis(x)
        dims = (*x.dims[:axis], _new_size(w, x.dims[axis]), *x.dims[axis + 1 :])
    result = Var(w.name(), dims, x.dtype, x.bound)
    w.add(result, f"R.match_cast({x.name}, {result.annotation()})")


def ending(w: Writer, goal: Var) -> str:
    """An expression of the type of `goal`."""
    if goal.fields is not None:
        return f"({', '.join(name_like(w, part) for part in goal.fields)},)"
    x = name_like(w, goal)
    if not goal.is_float or w.chance(4):
        return x
    return w.one_of([f"R.nn.relu({x})", f"R.add({x}, {name_like(w, goal)})", f"R.tanh({x})", f"R.negative({x})"])


def name_like(w: Writer, goal: Var) -> str:
    """A variable that may stand where `goal` stands."""
    fits = [v.name for v in w.pool if v.same_type(goal)]
    return w.one_of(fits[-2:] + fits)


def conditional(w: Writer) -> None:
    """An If: branches use what is outside, and end with values of one type."""
    from tests.fuzz.generator.module import some_binding

    if w.in_dataflow or w.depth > 1:
        raise NothingFits
    condition = w.one_of(v for v in w.pool if v.is_tensor and v.dtype == "bool" and v.ndim == 0)
    goal = w.pick()
    if w.chance(3):
        goal = Var("", fields=(w.pick(), w.pick()))
    name, pool, sizes = w.name("r"), list(w.pool), len(w.sizes)
    for keyword in (f"if {condition.name}:", "else:"):
        w.line(keyword)
        w.indent, w.depth = w.indent + 1, w.depth + 1
        for _ in range(w.random.randint(0, 3)):
            some_binding(w)
        w.line(f"{name} = {ending(w, goal)}")
        w.indent, w.depth = w.indent - 1, w.depth - 1
        w.pool = list(pool)
    del sizes
    w.pool.append(goal.named(name))


def dataflow(w: Writer) -> None:
    """A dataflow block, of which some variables are seen outside."""
    from tests.fuzz.generator.module import some_binding

    if w.in_dataflow:
        raise NothingFits
    before = list(w.pool)
    w.line("with R.dataflow():")
    w.indent, w.in_dataflow = w.indent + 1, True
    for _ in range(w.random.randint(1, 4)):
        some_binding(w)
    made = [v for v in w.pool if v not in before]
    if not made:
        x = w.pick()
        made = [w.add(x.named(w.name()), x.name)]
    outputs = w.random.sample(made, min(len(made), w.random.randint(1, 3)))
    w.line(f"R.output({', '.join(v.name for v in outputs)})")
    w.indent, w.in_dataflow = w.indent - 1, False
    w.pool = before + outputs
