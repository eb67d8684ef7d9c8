"""Functions, nested, recursive or written as loops, and calls of them."""

from __future__ import annotations

from tests.fuzz.generator.structure import ending, fields_of, name_like
from tests.fuzz.generator.writer import NothingFits, Var, Writer


def signature(params: tuple[Var, ...], result: Var | None) -> str:
    """Parameters and the type of the result."""
    inside = ", ".join(f"{p.name}: {p.annotation(quoted=True)}" for p in params)
    return f"({inside})" + (f" -> {result.annotation(quoted=True)}" if result is not None else "")


def plain(var: Var) -> bool:
    """Whether its type can stand in a signature: its extents are numbers or names."""
    if var.fields is not None:
        return all(plain(part) for part in var.fields)
    return not var.is_shape and all(d.known or d.text.isidentifier() for d in var.dims)


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
    text = ending(inner, param)
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
    """Another call of a function that is called already, or a field of what it returns."""
    name, params, result = w.one_of(w.callables())
    whole = result.named(f"{name}({', '.join(name_like(w, p) for p in params)})")
    value = w.one_of([*fields_of(whole), whole]) if w.chance(2) else whole
    w.add(value.named(w.name()), value.name)


def closure(w: Writer) -> None:
    """A function inside of a function, which sees the variables around it."""
    if w.in_dataflow or w.depth > 0:
        raise NothingFits
    candidates = [v for v in w.pool if v.known]
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
