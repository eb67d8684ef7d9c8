"""Bindings that combine elements along axes: reductions, scans, softmax, norms, losses."""

from __future__ import annotations

from tests.fuzz.generator.writer import Dim, NothingFits, Var, Writer


def reduction(w: Writer) -> None:
    x = w.pick_float() if not w.chance(6) else w.pick(lambda v: v.dtype in ("int64", "int32"))
    axes = sorted(w.random.sample(range(x.ndim), w.random.randint(0, x.ndim)))
    keep = w.chance(2)
    names = ["sum", "max", "min"] + (["mean", "variance", "std", "prod", "mean", "sum"] if x.is_float else [])
    name = w.one_of(names)
    everything = not axes
    over = range(x.ndim) if everything else axes
    if name not in ("sum", "prod") and any(x.dims[a].value == 0 for a in over):
        name = "sum"
    if keep:
        dims = tuple(Dim.of(1) if a in over else d for a, d in enumerate(x.dims))
    else:
        dims = tuple(d for a, d in enumerate(x.dims) if a not in over)
    shown = [w.signed(a, x.ndim) for a in axes]
    where = f"axis=None, keepdims={keep}" if everything else f"axis={shown}, keepdims={keep}"
    w.bind(f"R.{name}({x.name}, {where})", dims, x.dtype)


def softmax(w: Writer) -> None:
    x = w.pick_float(lambda v: v.ndim >= 1)
    axis = w.axis(x)
    w.bind(
        f"R.nn.{w.one_of(['softmax', 'softmax', 'log_softmax'])}({x.name}, axis={w.signed(axis, x.ndim)})",
        x.dims,
        x.dtype,
    )


def scan(w: Writer) -> None:
    x = w.pick_float(lambda v: v.ndim >= 1)
    name = w.one_of(["cumsum", "cumsum", "cumprod"])
    argument = x.name if name == "cumsum" else f"R.tanh({x.name})"
    w.bind(f"R.{name}({argument}, axis={w.axis(x)}, exclusive={w.chance(3)})", x.dims, x.dtype)


def median(w: Writer) -> None:
    x = w.pick_float(lambda v: v.ndim >= 1)
    axis = w.axis(x, lambda d: d.known and d.value > 0)
    dims = (*x.dims[:axis], *x.dims[axis + 1 :])
    fields = (Var("", dims, x.dtype), Var("", dims, "int64", x.dims[axis].value))
    whole = w.add(Var(w.name("t"), fields=fields), f"R.median({x.name}, axis=[{axis}], keepdims=False)")
    at = w.one_of([0, 0, 1])
    w.add(fields[at].named(w.name()), f"{whole.name}[{at}]")


def repeated(w: Writer) -> None:
    """A number of each row, in the place of all of its elements."""
    x = w.pick_float(lambda v: v.ndim >= 1 and v.dims[-1].value > 0)
    name = w.one_of(["mean", "sum", "max"])
    shape = f"R.shape([{', '.join(d.text for d in x.dims)}])"
    w.bind(f"R.broadcast_to(R.{name}({x.name}, axis=[-1], keepdims=True), {shape})", x.dims, x.dtype)


def _vector(w: Writer, dim: Dim, dtype: str) -> Var:
    return w.pick(lambda v: v.dtype == dtype and v.ndim == 1 and v.dims[0].text == dim.text)


def norm(w: Writer) -> None:
    """A normalization with its parameters."""
    x = w.pick_float(lambda v: v.ndim >= 1)
    kind = w.one_of(["layer", "layer", "rms", "group", "instance", "batch", "batch"])
    if kind in ("layer", "rms"):
        dim = x.dims[-1]
        if dim.value == 0:
            raise NothingFits
        gamma, beta = _vector(w, dim, x.dtype), _vector(w, dim, x.dtype)
        if kind == "layer":
            w.bind(f"R.nn.layer_norm({x.name}, {gamma.name}, {beta.name}, axes=[-1], epsilon=0.01)", x.dims, x.dtype)
        else:
            w.bind(f"R.nn.rms_norm({x.name}, {gamma.name}, axes=[-1], epsilon=0.01)", x.dims, x.dtype)
        return
    if x.ndim < 3 or any(d.value == 0 for d in x.dims):
        raise NothingFits
    channels, over = x.dims[1], list(range(2, x.ndim))
    gamma, beta = _vector(w, channels, x.dtype), _vector(w, channels, x.dtype)
    if kind == "group":
        if not channels.known or x.dtype == "bfloat16":  # which TVM's type inference refuses
            raise NothingFits
        groups = w.one_of(g for g in (1, 2, 4, channels.value) if channels.value % g == 0)
        options = f"num_groups={groups}, channel_axis=1, axes={over}, epsilon=0.01"
        text = f"R.nn.group_norm({x.name}, {gamma.name}, {beta.name}, {options})"
        w.bind(text, x.dims, x.dtype)
    elif kind == "instance":
        text = f"R.nn.instance_norm({x.name}, {gamma.name}, {beta.name}, channel_axis=1, axes={over}, epsilon=0.01)"
        w.bind(text, x.dims, x.dtype)
    else:
        training = w.chance(3)
        means, spread = _vector(w, channels, x.dtype), _vector(w, channels, x.dtype)
        text = (
            f"R.nn.batch_norm({x.name}, {gamma.name}, {beta.name}, {means.name}, R.abs({spread.name}), axis=1, "
            f"epsilon=0.01, training={training})"
        )
        vector = Var("", (channels,), x.dtype)
        whole = w.add(Var(w.name("t"), fields=(x, vector, vector)), text)
        w.bind(f"{whole.name}[0]", x.dims, x.dtype)
        if w.chance(3):
            w.bind(f"{whole.name}[{w.one_of([1, 2])}]", (channels,), x.dtype)


def loss(w: Writer) -> None:
    """A loss of rows."""
    x = w.pick_float(lambda v: v.ndim == 2 and v.size and v.dims[1].known)
    classes, rows = x.dims[1], x.dims[0]
    kind = w.one_of(["nll", "logits", "own"])
    if kind == "logits":
        y = w.one_of(v for v in w.pool if v.same_type(x))
        w.bind(f"R.nn.cross_entropy_with_logits({x.name}, {y.name})", (), x.dtype)
        return
    labels = w.index((rows,), classes.value)
    if kind == "nll":
        reduction_ = w.one_of(["mean", "sum", "none"])
        weights = ""
        if w.chance(2):
            weights = f", R.abs({_vector(w, classes, x.dtype).name})"
        dims = (rows,) if reduction_ == "none" else ()
        w.bind(f'R.nn.nll_loss({x.name}, {labels.name}{weights}, reduction="{reduction_}")', dims, x.dtype)
    else:
        raise NothingFits


def collapse(w: Writer) -> None:
    x = w.pick_float(lambda v: v.ndim >= 1)
    dims = tuple(Dim.of(1) if w.chance(2) else d for d in x.dims)
    if w.chance(3) and x.ndim > 1:
        dims = dims[1:]
    w.bind(f"R.collapse_sum_to({x.name}, R.shape([{', '.join(d.text for d in dims)}]))", dims, x.dtype)
