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


def _ending(w: Writer, goal: Var) -> str:
    """An expression of the type of `goal`."""
    if goal.fields is not None:
        return f"({', '.join(_name_like(w, part) for part in goal.fields)},)"
    x = _name_like(w, goal)
    if not goal.is_float or w.chance(4):
        return x
    return w.one_of([f"R.nn.relu({x})", f"R.add({x}, {_name_like(w, goal)})", f"R.tanh({x})", f"R.negative({x})"])


def _name_like(w: Writer, goal: Var) -> str:
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
        w.line(f"{name} = {_ending(w, goal)}")
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


def signature(params: tuple[Var, ...], result: Var | None) -> str:
    """Parameters and the type of the result."""
    inside = ", ".join(f"{p.name}: {p.annotation(quoted=True)}" for p in params)
    return f"({inside})" + (f" -> {result.annotation(quoted=True)}" if result is not None else "")


def plain(var: Var) -> bool:
    """Whether its type can stand in a signature: its extents are numbers or names."""
    if var.fields is not None:
        return all(plain(part) for part in var.fields)
    return not var.is_shape and all(d.known or d.text.isidentifier() for d in var.dims)


def known(var: Var) -> bool:
    """Whether all of its extents are numbers."""
    return all(known(part) for part in var.fields) if var.fields is not None else all(d.known for d in var.dims)


def sizes_of(params: tuple[Var, ...]) -> list[str]:
    """The symbolic extents of a signature."""
    found: dict[str, None] = {}
    for param in params:
        parts = param.fields if param.fields is not None else None
        if parts is not None:
            found.update(dict.fromkeys(sizes_of(parts)))
        else:
            found.update({d.text: None for d in param.dims if not d.known})
    return list(found)


def _result(w: Writer, first: int) -> tuple[Var, str]:
    """What a function gives back: something that it made, or several things as a tuple."""
    made = w.pool[first:] or w.pool
    made = [v for v in made if not v.is_shape]
    if not made:
        raise NothingFits
    if w.chance(3):
        parts = tuple(w.one_of(made) for _ in range(2))
        return Var("", fields=parts), f"({parts[0].name}, {parts[1].name})"
    var = w.one_of(made[-2:])
    return var, var.name


def _body(w: Writer, inner: Writer, head: str, params: tuple[Var, ...]) -> tuple[list[str], Var]:
    from tests.fuzz.generator.module import some_binding

    first = len(inner.pool)
    inner.indent += 1
    declared = sizes_of(params)
    for _ in range(w.random.randint(1, 4)):
        some_binding(inner)
    result, text = _result(inner, first)
    bad = [s for s in sizes_of((result,)) if not s.isidentifier() or s not in declared]
    if bad:
        raise NothingFits
    names = [f"{'    ' * inner.indent}{size} = T.int64()" for size in dict.fromkeys([*declared, *inner.sizes])]
    if not head.startswith("local"):
        names.insert(0, "    " * inner.indent + "cls = Module")
    inner.line(f"return {text}")
    return names + inner.lines, result


def function(w: Writer) -> None:
    """A function of the module, private or not, and a call of it."""
    if len(w.shared.callables) > 2 or w.depth > 1:
        raise NothingFits
    candidates = [v for v in w.pool if plain(v)]
    arguments = tuple(w.one_of(candidates) for _ in range(w.random.randint(1, 3)))
    params = tuple(v.named(w.name("a")) for v in arguments)
    name = w.name("f")
    inner = Writer(w.shared, params, 1)
    inner.depth = 2
    lines, result = _body(w, inner, "module", params)
    private = "(private=True)" if not w.chance(4) else ""
    head = [f"    @R.function{private}", f"    def {name}{signature(params, result)}:"]
    w.shared.functions += [*head, *lines, ""]
    w.shared.callables.append((f"cls.{name}", params, result))
    w.add(result.named(w.name()), f"cls.{name}({', '.join(v.name for v in arguments)})")


def recursion(w: Writer) -> None:
    """A private function that calls itself until its counter is 0, and a call of it."""
    from tests.fuzz.generator.module import some_binding

    if w.depth > 1:
        raise NothingFits
    argument = w.one_of(v for v in w.pool if plain(v) and (v.is_float or v.fields))
    count, param = Var(w.name("i"), (), "int64"), argument.named(w.name("a"))
    name, more, left, result = (w.name(prefix) for prefix in ("f", "c", "v", "r"))
    params = (count, param)
    inner = Writer(w.shared, params, 3)
    inner.depth = 2
    for _ in range(w.random.randint(1, 3)):
        some_binding(inner)
    text = _ending(inner, param)
    w.shared.functions += [
        "    @R.function(private=True)",
        f"    def {name}{signature(params, param)}:",
        "        cls = Module",
        *(f"        {size} = T.int64()" for size in dict.fromkeys([*sizes_of(params), *inner.sizes])),
        f'        {more} = R.greater({count.name}, R.const(0, "int64"))',
        f"        if {more}:",
        *inner.lines,
        f'            {left} = R.subtract({count.name}, R.const(1, "int64"))',
        f"            {result} = cls.{name}({left}, {text})",
        "        else:",
        f"            {result} = {param.name}",
        f"        return {result}",
        "",
    ]
    times = w.number_of([0, 1, 2, 3], "int64")
    w.add(argument.named(w.name()), f"cls.{name}({times}, {argument.name})")


def prim_function(w: Writer) -> None:
    """A PrimFunc, written by hand, that doubles a tensor, and a call of it."""
    x = w.pick(lambda v: v.dtype == "float32" and v.ndim >= 1 and v.size and all(d.known for d in v.dims))
    name, places = w.name("double"), [f"i{k}" for k in range(x.ndim)]
    buffer = f'T.Buffer(({"".join(d.text + ", " for d in x.dims)}), "float32")'
    at = ", ".join(f"v{place}" for place in places)
    loops = ", ".join(d.text for d in x.dims)
    grid = f"for {places[0]} in range({loops}):" if x.ndim == 1 else f"for {', '.join(places)} in T.grid({loops}):"
    remap = f'T.axis.remap("{"S" * x.ndim}", [{", ".join(places)}])'
    w.shared.functions += [
        "    @T.prim_func(private=True, s_tir=True)",
        f"    def {name}(a: {buffer}, b: {buffer}):",
        f"        {grid}",
        '            with T.sblock("double"):',
        f"                {at} = {remap}",
        f"                b[{at}] = a[{at}] * T.float32(2.0)",
        "",
    ]
    w.bind(f"R.call_tir(cls.{name}, ({x.name},), out_ty={x.annotation()})", x.dims, x.dtype)


def call(w: Writer) -> None:
    """Another call of a function that is called already."""
    name, params, result = w.one_of([*w.shared.callables, *w.locals])
    if not (name.startswith("cls.") and not all(known(p) for p in params)):
        arguments = [_name_like(w, p) for p in params]
        w.add(result.named(w.name()), f"{name}({', '.join(arguments)})")
    else:
        raise NothingFits


def closure(w: Writer) -> None:
    """A function inside of a function, which sees the variables around it."""
    if w.in_dataflow or w.depth > 0:
        raise NothingFits
    candidates = [v for v in w.pool if known(v)]
    arguments = tuple(w.one_of(candidates) for _ in range(w.random.randint(1, 2)))
    params = tuple(v.named(w.name("a")) for v in arguments)
    around = w.random.sample(candidates, min(len(candidates), w.random.randint(0, 2)))
    name = w.name("g")
    inner = Writer(w.shared, [*around, *params], w.indent)
    inner.depth = 2
    lines, result = _body(w, inner, "local", params)
    w.line("@R.function")
    w.line(f"def {name}{signature(params, result)}:")
    w.lines += lines
    w.locals.append((name, params, result))
    w.add(result.named(w.name()), f"{name}({', '.join(v.name for v in arguments)})")
