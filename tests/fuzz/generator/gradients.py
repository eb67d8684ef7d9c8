"""Bindings of backward operators, as differentiation leaves them."""

from __future__ import annotations

from tests.fuzz.generator.writer import Dim, NothingFits, Var, Writer

_ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "selu", "sigmoid", "tanh")


def activation(w: Writer) -> None:
    """An activation's adjoint."""
    x = w.pick_float()
    g = w.one_of(v for v in w.pool if v.same_type(x))
    kind = w.one_of([*_ACTIVATIONS, "leakyrelu", "softplus", "gated_add"])
    if kind == "gated_add":
        whole = w.add(Var(w.name("t"), fields=(x, x)), f"R.grad.gated_add_backward({x.name}, {g.name}, {x.name})")
        w.bind(f"{whole.name}[{w.one_of([0, 1])}]", x.dims, x.dtype)
        return
    options = {"leakyrelu": ", alpha=0.2", "softplus": ", beta=1.0, threshold=20.0"}.get(kind, "")
    w.bind(f"R.grad.{kind}_backward({x.name}, {g.name}{options})", x.dims, x.dtype)


def rows(w: Writer) -> None:
    """The adjoint of a softmax."""
    x = w.pick_float(lambda v: v.ndim >= 1)
    g = w.one_of(v for v in w.pool if v.same_type(x))
    name = w.one_of(["softmax", "log_softmax"])
    y = w.bind(f"R.nn.{name}({x.name}, axis=-1)", x.dims, x.dtype)
    w.bind(f"R.grad.{name}_backward({y.name}, {g.name}, axis=-1)", x.dims, x.dtype)


def norm(w: Writer) -> None:
    """The adjoint of a normalization."""
    x = w.pick_float(lambda v: v.ndim >= 2 and all(d.value for d in v.dims))
    kind = w.one_of(["layer_norm", "rms_norm", "batch_norm"])
    dim = x.dims[1] if kind == "batch_norm" else x.dims[-1]
    gamma = w.pick(lambda v: v.dtype == x.dtype and v.ndim == 1 and v.dims[0].text == dim.text)
    g = w.one_of(v for v in w.pool if v.same_type(x))
    options = {
        "layer_norm": "axes=[-1], epsilon=0.01, center=True, scale=True",
        "rms_norm": "axes=[-1], epsilon=0.01",
        "batch_norm": "axis=1, epsilon=0.01, center=True, scale=True, momentum=0.1, training=True",
    }[kind]
    fields = (x, gamma) if kind == "rms_norm" else (x, gamma, gamma)
    text = f"R.grad.{kind}_backward({x.name}, {gamma.name}, {g.name}, {options})"
    whole = w.add(Var(w.name("t"), fields=fields), text)
    for i in range(len(fields)):
        if w.chance(2):
            w.add(fields[i].named(w.name()), f"{whole.name}[{i}]")


def sums(w: Writer) -> None:
    """The adjoints of repeating and looking up."""
    if w.shared.has_vague_types:
        raise NothingFits  # differentiation makes them of known shapes
    x = w.pick_float(lambda v: v.ndim >= 1)
    axis = w.axis(x)
    if w.chance(2):
        dtype = "float64" if x.dtype == "float64" else "float32"
        dims = (*x.dims[:axis], *x.dims[axis + 1 :])
        w.bind(f"R.grad.broadcast_backward({x.name}, axis=[{axis}])", dims, dtype)
        return
    if not x.dims[axis].value:
        raise NothingFits
    index = w.index((Dim.of(w.one_of([1, 3, 5])),), x.dims[axis].value)
    if not all(d.known for d in index.dims):
        raise NothingFits
    dims = (*x.dims[:axis], *index.dims, *x.dims[axis + 1 :])
    g = w.bind(f"R.take({x.name}, {index.name}, axis={axis})", dims, x.dtype)
    if index.ndim == 1:
        w.bind(f"R.grad.take_backward({g.name}, {x.name}, {index.name}, axis={axis})", x.dims, x.dtype)
