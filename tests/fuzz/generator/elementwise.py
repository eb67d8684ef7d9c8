"""Bindings that compute each element by itself."""

from __future__ import annotations

from tests.fuzz.generator.writer import INTEGERS, Dim, Dims, NothingFits, Var, Writer

_SMOOTH = (
    *("abs", "negative", "tanh", "sigmoid", "erf", "sin", "cos", "atan", "asinh", "square"),
    *("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.selu", "nn.softplus", "nn.leakyrelu"),
)
_STEPS = ("sign", "ceil", "floor", "round", "trunc")
#: What an argument must pass through first, most of the time.
_DOMAINS = {
    "exp": "R.tanh({})",
    "cosh": "R.tanh({})",
    "sinh": "R.nn.silu({})",
    "tan": "R.sigmoid({})",
    "asin": 'R.multiply(R.tanh({x}), R.const(0.9, "{dtype}"))',
    "acos": 'R.multiply(R.tanh({x}), R.const(0.9, "{dtype}"))',
    "atanh": 'R.multiply(R.sigmoid({x}), R.const(0.9, "{dtype}"))',
    "log": 'R.add(R.abs({x}), R.const(0.5, "{dtype}"))',
    "sqrt": "R.abs({x})",
    "rsqrt": 'R.add(R.square({x}), R.const(0.5, "{dtype}"))',
    "acosh": 'R.add(R.abs({x}), R.const(1.5, "{dtype}"))',
}


def unary(w: Writer) -> None:
    """A function of one argument."""
    x = w.pick_float()
    if w.chance(3):
        name = w.one_of(_DOMAINS)
        argument = x.name
        if not w.chance(8):
            template = _DOMAINS[name].replace("{}", "{x}")
            argument = template.format(x=x.name, dtype=x.dtype)
        w.bind(f"R.{name}({argument})", x.dims, x.dtype)
        return
    name = w.one_of(_STEPS) if w.chance(6) else w.one_of(_SMOOTH)
    w.bind(f"R.{name}({x.name})", x.dims, x.dtype)


def broadcast(x: Var, y: Var) -> Dims | None:
    """The dimensions of both together; None where they do not fit."""
    result = []
    longer = max(x.ndim, y.ndim)
    one = Dim.of(1)
    for i in range(longer):
        a = x.dims[i - longer + x.ndim] if i - longer + x.ndim >= 0 else one
        b = y.dims[i - longer + y.ndim] if i - longer + y.ndim >= 0 else one
        if a.text != b.text and a.text != "1" and b.text != "1":
            return None
        result.append(b if a.text == "1" else a)
    return tuple(result)


def pair(w: Writer, x: Var) -> tuple[Var, Dims]:
    """Another tensor of the same dtype, and the dimensions of both."""
    y = w.pick(lambda v: v.dtype == x.dtype and broadcast(x, v) is not None)
    dims = broadcast(x, y)
    assert dims is not None
    return y, dims


def binary(w: Writer) -> None:
    """Arithmetic with another tensor, which may be broadcast."""
    x = w.pick_float()
    y, dims = pair(w, x)
    if w.chance(2):
        x, y = y, x
    name = w.one_of(["add", "subtract", "multiply", "maximum", "minimum", "add", "multiply", *_RARE])
    if name == "divide":
        w.bind(f'R.divide({x.name}, R.add(R.abs({y.name}), R.const(0.5, "{x.dtype}")))', dims, x.dtype)
    elif name == "power":
        w.bind(f'R.power(R.add(R.abs({x.name}), R.const(0.5, "{x.dtype}")), R.tanh({y.name}))', dims, x.dtype)
    elif name == "log_add_exp":
        w.bind(f"R.log_add_exp({x.name}, {y.name})", dims, x.dtype)
    elif name in ("floor_divide", "floor_mod", "mod"):
        w.bind(f'R.{name}({x.name}, R.add(R.abs({y.name}), R.const(0.5, "{x.dtype}")))', dims, x.dtype)
    else:
        w.bind(f"R.{name}({x.name}, {y.name})", dims, x.dtype)


_RARE = ("divide", "power", "atan2", "log_add_exp", "floor_mod", "mod", "floor_divide")


def scalar(w: Writer) -> None:
    """Arithmetic with a constant."""
    x = w.pick_float()
    number = w.number_of([0.5, 2.0, -0.125, 1.0, 3.0, 0.0, -1.5], x.dtype)
    name = w.one_of(["add", "multiply", "subtract", "maximum", "minimum"])
    if w.chance(5):
        name, number = "divide", w.number_of([0.5, 3.0, -2.0], x.dtype)
    arguments = [x.name, number]
    if name != "divide" and w.chance(2):
        arguments.reverse()
    w.bind(f"R.{name}({', '.join(arguments)})", x.dims, x.dtype)


def fused(w: Writer) -> None:
    """A function of three arguments."""
    x = w.pick_float()
    same = [v for v in w.pool if v.is_tensor and v.same_type(x)]
    y, z = w.one_of(same), w.one_of(same)
    kind = w.one_of(["fma", "gated", "clip", "hardtanh", "prelu"])
    if kind == "fma":
        w.bind(f"R.ewise_fma({x.name}, {y.name}, {z.name})", x.dims, x.dtype)
    elif kind == "gated":
        w.bind(f"R.nn.gated_add({x.name}, {y.name}, {z.name})", x.dims, x.dtype)
    elif kind == "clip":
        w.bind(f"R.clip({x.name}, R.prim_value(-0.5), R.prim_value(1.25))", x.dims, x.dtype)
    elif kind == "hardtanh":
        w.bind(f"R.nn.hardtanh({x.name}, low=-0.5, high=1.25)", x.dims, x.dtype)
    else:
        if x.ndim == 0:
            raise NothingFits
        axis = w.axis(x)
        alpha = w.pick(lambda v: v.dtype == x.dtype and v.ndim == 1 and v.dims[0].text == x.dims[axis].text)
        w.bind(f"R.nn.prelu({x.name}, {alpha.name}, axis={axis})", x.dims, x.dtype)


def compare(w: Writer) -> None:
    """A comparison."""
    x = w.pick_float() if w.chance(2) else w.pick(lambda v: v.dtype != "bool")
    y, dims = pair(w, x)
    name = w.one_of(["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"])
    w.bind(f"R.{name}({x.name}, {y.name})", dims, "bool")


def classify(w: Writer) -> None:
    """Which numbers are finite."""
    x = w.pick_float()
    w.bind(f"R.{w.one_of(['isnan', 'isinf', 'isfinite'])}({x.name})", x.dims, "bool")


def logic(w: Writer) -> None:
    """Arithmetic of booleans and of whole numbers."""
    x = w.pick(lambda v: not v.is_float)
    if x.dtype == "bool":
        if w.chance(4):
            w.bind(f"R.logical_not({x.name})", x.dims, "bool")
            return
        y, dims = pair(w, x)
        w.bind(f"R.{w.one_of(['logical_and', 'logical_or', 'logical_xor'])}({x.name}, {y.name})", dims, "bool")
        return
    name = w.one_of(["add", "subtract", "multiply", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"])
    if w.chance(6):
        name = w.one_of(["divide", "floor_divide", "floor_mod", "mod"])  # by 0, too
    if w.chance(4):
        number = w.one_of([1, 2, 3])
        name = w.one_of(["left_shift", "right_shift", "floor_divide", "floor_mod", "add"])
        w.bind(f'R.{name}({x.name}, R.const({number}, "{x.dtype}"))', x.dims, x.dtype)
    elif w.chance(6):
        w.bind(f"R.{w.one_of(['bitwise_not', 'abs', 'negative'])}({x.name})", x.dims, x.dtype)
    else:
        y, dims = pair(w, x)
        w.bind(f"R.{name}({x.name}, {y.name})", dims, x.dtype)


def where(w: Writer) -> None:
    """A choice between two tensors."""
    x = w.pick()
    y, dims = pair(w, x)
    joined = Var("", dims, x.dtype)
    c = w.pick(lambda v: v.dtype == "bool" and broadcast(v, joined) is not None)
    whole = broadcast(c, joined)
    assert whole is not None
    w.bind(f"R.where({c.name}, {x.name}, {y.name})", whole, x.dtype)


def cast(w: Writer) -> None:
    """A cast, by the author of the module."""
    x = w.pick()
    if x.is_float and w.chance(6):
        dtype = w.one_of(["int32", "int64", "bool"])
    elif x.is_float:
        other = w.one_of(["bfloat16", "float16", "float64"]) if w.chance(8) else "float32"
        dtype = w.one_of(["float32", w.shared.low, w.shared.low, other])
    else:
        dtype = w.one_of(["float32", "float32", w.shared.low, *INTEGERS, "bool"])
        if x.dtype == "bool" and dtype == "bool":
            dtype = "float32"
    cast_back = w.chance(3)
    bound = x.bound if dtype in INTEGERS and x.bound else 0
    y = w.bind(f'R.astype({x.name}, "{dtype}")', x.dims, dtype, bound)
    if cast_back and y.is_float and x.is_float:
        w.bind(f'R.astype({y.name}, "{x.dtype}")', x.dims, x.dtype)


def dropout(w: Writer) -> None:
    """Dropout, which does nothing when a model is not trained."""
    x = w.pick_float()
    pair_ = w.bind(f"R.nn.dropout({x.name}, rate=0.5)", x.dims, x.dtype, keep=False)
    w.bind(f"{pair_.name}[0]", x.dims, x.dtype)
