"""Bindings that are about the module and not about numbers: tuples, shapes, conditionals, functions, blocks."""

from __future__ import annotations

from collections.abc import Iterator

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


def fields_of(var: Var) -> Iterator[Var]:
    """The fields of a tuple and theirs, each named by the expression that reads it."""
    for at, part in enumerate(var.fields or ()):
        field = part.named(f"{var.name}[{at}]")
        yield field
        yield from fields_of(field)


def unpack(w: Writer) -> None:
    """A field of a tuple, or a field of a field."""
    field = w.one_of(field for var in w.pool for field in fields_of(var))
    w.add(field.named(w.name()), field.name)


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


def _equal_size(w: Writer, dim: Dim) -> Dim:
    """Another extent of which the module does not say that it is as large."""
    sizes = {d.text: d for v in w.pool if v.is_tensor for d in v.dims if d.value == dim.value and d.text != dim.text}
    return w.one_of(size for size in sizes.values() if size.known or size.text.isidentifier())


def match_cast(w: Writer) -> None:
    """A tensor whose extents get names of their own, names of other extents that are as large, or numbers."""
    x = w.pick(lambda v: v.ndim >= 1)
    kind = w.one_of(["numbers", "new", "equal"])
    if kind == "numbers":
        dims = tuple(Dim.of(d.value) for d in x.dims)
    else:
        axis = w.axis(x)
        size = _new_size(w, x.dims[axis]) if kind == "new" else _equal_size(w, x.dims[axis])
        dims = (*x.dims[:axis], size, *x.dims[axis + 1 :])
    result = Var(w.name(), dims, x.dtype, x.bound)
    w.add(result, f"R.match_cast({x.name}, {result.annotation()})")


def ending(w: Writer, goal: Var) -> str:
    """An expression of the type of `goal`."""
    calls = [(name, params) for name, params, result in w.callables() if result.same_type(goal)]
    if calls and w.chance(3):
        name, params = w.one_of(calls)
        return f"{name}({', '.join(name_like(w, param) for param in params)})"
    if goal.fields is not None:
        return f"({', '.join(name_like(w, part) for part in goal.fields)},)"
    x = name_like(w, goal)
    if not goal.is_float or w.chance(4):
        return x
    return w.one_of([f"R.nn.relu({x})", f"R.add({x}, {name_like(w, goal)})", f"R.tanh({x})", f"R.negative({x})"])


def name_like(w: Writer, goal: Var) -> str:
    """A variable, or a field of one, that may stand where `goal` stands."""
    fits = [v.name for v in w.pool if v.same_type(goal)]
    fields = [field.name for v in w.pool for field in fields_of(v) if field.same_type(goal)]
    return w.one_of(fields if fields and w.chance(3) else fits[-2:] + fits)


def conditional(w: Writer) -> None:
    """An If: branches use what is outside, and end with values of one type."""
    from tests.fuzz.generator.module import some_binding

    if w.in_dataflow or w.depth > 1:
        raise NothingFits
    condition = w.one_of(v for v in w.pool if v.is_tensor and v.dtype == "bool" and v.ndim == 0)
    goal = w.pick()
    if w.chance(3):
        goal = Var("", fields=(w.pick(), w.pick()))
    name, pool = w.name("r"), list(w.pool)
    for keyword in (f"if {condition.name}:", "else:"):
        w.line(keyword)
        w.indent, w.depth = w.indent + 1, w.depth + 1
        for _ in range(w.random.randint(0, 3)):
            some_binding(w)
        w.line(f"{name} = {ending(w, goal)}")
        w.indent, w.depth = w.indent - 1, w.depth - 1
        w.pool = list(pool)
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
