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
    kind = w.one_of(["layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm"])
    dim = x.dims[-1] if kind in ("layer_norm", "rms_norm") else x.dims[1]
    gamma = w.pick(lambda v: v.dtype == x.dtype and v.ndim == 1 and v.dims[0].text == dim.text)
    g = w.one_of(v for v in w.pool if v.same_type(x))
    inner = f"channel_axis=1, axes={[*range(2, x.ndim)]}, epsilon=0.01, center=True, scale=True"
    options = {
        "group_norm": f"num_groups={2 if dim.value % 2 == 0 else 1}, {inner}",
        "instance_norm": inner,
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


def attention(w: Writer) -> None:
    """The adjoints of queries, keys and values."""
    if w.shared.has_vague_types:
        raise NothingFits  # as attention
    x = w.pick_float(lambda v: v.ndim == 4 and v.size)
    g = w.one_of(v for v in w.pool if v.same_type(x))
    options = f"scale=None, causal_mask={w.one_of(['None', repr('TopLeft')])}, window_size=None"
    whole = w.add(
        Var(w.name("t"), fields=(x, x, x)),
        f"R.grad.attention_backward({x.name}, {x.name}, {x.name}, {g.name}, {options})",
    )
    w.add(x.named(w.name()), f"{whole.name}[{w.one_of([0, 1, 2])}]")


def windows(w: Writer) -> None:
    """The adjoints of convolutions' weights and of pooling."""
    x = w.pick_float(lambda v: v.ndim in (3, 4, 5) and v.size and all(d.known for d in v.dims))
    n = x.ndim - 2
    if n == 2 and w.chance(2):
        name = w.one_of(["max", "avg"])
        extra = f", count_include_pad={w.chance(2)}" if name == "avg" else ""
        options = f"pool_size=[2, 2], strides=[1, 1], padding=[1, 1, 1, 1]{extra}"
        dims = (*x.dims[:2], *(Dim.of(d.value + 1) for d in x.dims[2:]))
        g = w.bind(f"R.nn.{name}_pool2d({x.name}, {options})", dims, x.dtype)
        w.bind(f"R.grad.{name}_pool2d_backward({g.name}, {x.name}, {options})", x.dims, x.dtype)
        return

    def fits(v: Var) -> bool:
        return (
            v.dtype == x.dtype
            and v.ndim == x.ndim
            and v.dims[1].text == x.dims[1].text
            and all(d.known and 0 < d.value <= min(3, x.dims[i + 2].value) for i, d in enumerate(v.dims[2:]))
        )

    weight = w.pick(fits)
    letters = "DHW"[-n:]
    options = (
        f"strides={[1] * n}, padding={[0] * 2 * n}, dilation={[1] * n}, groups=1, data_layout='NC{letters}', "
        f"kernel_layout='OI{letters}', out_layout='NC{letters}', out_dtype=''"
    )
    sizes = (Dim.of(d.value - k.value + 1) for d, k in zip(x.dims[2:], weight.dims[2:], strict=True))
    g = w.bind(f"R.nn.conv{n}d({x.name}, {weight.name})", (x.dims[0], weight.dims[0], *sizes), x.dtype)
    w.bind(f"R.grad.conv{n}d_weight_backward({x.name}, {weight.name}, {g.name}, {options})", weight.dims, x.dtype)


def losses(w: Writer) -> None:
    """The adjoints of losses of rows."""
    x = w.pick_float(lambda v: v.ndim == 2 and v.size and v.dims[1].known)
    labels = w.index((x.dims[0],), x.dims[1].value)
    reduction = w.one_of(["mean", "sum", "none"])
    wide = "float64" if x.dtype == "float64" else "float32"
    dims = (x.dims[0],) if reduction == "none" else ()
    g = w.pick(lambda v: v.dtype == wide and [d.text for d in v.dims] == [d.text for d in dims])
    if w.chance(2) or x.dtype != wide:
        options = f'ignore_index=-100, label_smoothing={w.one_of([0.0, 0.1])}, reduction="{reduction}"'
        w.bind(f"R.grad.cross_entropy_backward({x.name}, {labels.name}, {g.name}, {options})", x.dims, x.dtype)
    else:
        text = (
            f'R.grad.nll_loss_backward({g.name}, {x.name}, {labels.name}, reduction="{reduction}", ignore_index=-100)'
        )
        w.bind(text, x.dims, x.dtype)
