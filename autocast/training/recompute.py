"""Recompute the activations of named regions in the backward pass instead of keeping them.

A region is a submodule of the torch module, found by the paths that the frontend leaves on variables. What leaves a
region is kept; what only the backward pass of the region reads is computed again, just before its first reader.

Source: Griewank, "Achieving logarithmic growth of temporal and spatial complexity in reverse automatic
differentiation", 1992; Chen et al., "Training deep nets with sublinear memory cost", 2016.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from tvm import relax

from autocast.errors import TrainingError
from autocast.ir import PlacedBuilder, place_of
from autocast.training.building import new_block
from autocast.training.copying import substituted
from autocast.training.paths import variables


def recompute(joint: relax.Function, forward: relax.Function, patterns: Sequence[str]) -> relax.Function:
    """A function that computes what `joint` does and keeps fewer activations between forward and backward.

    Before::                                     After, for the pattern "layers.*"::

        a = R.matmul(x, w)      # layers.0           a = R.matmul(x, w)
        b = R.nn.gelu(a)        # layers.0           b = R.nn.gelu(a)
        c = R.matmul(b, v)      # layers.0           c = R.matmul(b, v)
        ...                                          ...
        db = R.matmul(dc, v')                        db = R.matmul(dc, v')
        da = R.grad.gelu_backward(a, db)             x1 = R.grad.start_checkpoint(x)
                                                     a1 = R.matmul(x1, w)
                                                     da = R.grad.gelu_backward(a1, db)

    `start_checkpoint` is the identity. It keeps a1 from being recognized as a; lowering takes it away.

    Parameters
    ----------
    joint : relax.Function
        What `differentiate` made of `forward`: its bindings, then those of the backward pass.
    forward : relax.Function
    patterns : sequence of str
        Globs of module paths, one for each part of a path: "bert.encoder.layer.*" makes each layer a region. An
        operator is in the region of the first pattern that it matches. Without patterns, `joint` is given back.

    Raises
    ------
    TrainingError
        A pattern matches no submodule that the function has an operator of.
    """
    if not patterns:
        return joint
    bindings = [binding for block in joint.body.blocks for binding in block.bindings]
    known = {binding.var for block in forward.body.blocks for binding in block.bindings}
    regions = _regions([binding for binding in bindings if binding.var in known], patterns)
    builder = PlacedBuilder()
    with builder.function("main", list(joint.params), attrs=dict(joint.attrs or {})):
        with new_block(builder, joint):
            _emit(builder, joint, bindings, known, regions)
        builder.emit_func_output(joint.body.body)
    return builder.get()["main"]


def _emit(
    builder: PlacedBuilder,
    joint: relax.Function,
    bindings: Sequence[relax.VarBinding],
    known: set[relax.Var],
    regions: Mapping[relax.Var, str],
) -> None:
    values = {binding.var: binding.value for binding in bindings}
    kept = _kept(joint, bindings, known, regions)
    parameters = set(joint.params[int((joint.attrs or {}).get("num_input", len(joint.params))) :])
    copies: dict[tuple[str, relax.Var], relax.Var] = {}

    def again(var: relax.Var, region: str) -> relax.Var:
        """`var` as the recomputation of `region` sees it."""
        if var in parameters:
            return var
        if (region, var) not in copies:
            builder.place = place_of(var)
            if regions.get(var) == region and var not in kept:
                value = substituted(builder, values[var], {o: again(o, region) for o in variables(values[var])})
                copies[region, var] = builder.emit(value, f"{var.name}_again")
            else:
                copies[region, var] = builder.emit(relax.op.grad.start_checkpoint(var), f"{var.name}_kept")
        return copies[region, var]

    for binding in bindings:
        lost = () if binding.var in known else {o for o in variables(binding.value) if o in regions and o not in kept}
        if lost:
            value = substituted(builder, binding.value, {var: again(var, regions[var]) for var in lost})
            binding = relax.VarBinding(binding.var, builder.normalize(value))
        builder.emit_normalized(binding)


def _kept(
    joint: relax.Function,
    bindings: Sequence[relax.VarBinding],
    known: set[relax.Var],
    regions: Mapping[relax.Var, str],
) -> set[relax.Var]:
    """What leaves its region in the forward pass, or is a result."""
    kept = set(variables(joint.body.body))
    for binding in bindings:
        if binding.var in known:
            own = regions.get(binding.var)
            kept.update(operand for operand in variables(binding.value) if regions.get(operand, own) != own)
    return kept


def _regions(forward: Sequence[relax.VarBinding], patterns: Sequence[str]) -> dict[relax.Var, str]:
    """The region of each variable that is in one."""
    paths = {binding.var: place_of(binding.var).module for binding in forward}
    result, used = {}, set()
    for var, path in paths.items():
        for pattern in patterns:
            region = _region(path, pattern)
            if region:
                result[var] = region
                used.add(pattern)
                break
    modules = sorted({".".join(path.split(".")[:depth]) for path in paths.values() for depth in range(1, 9)} - {""})
    for pattern in patterns:
        if pattern not in used and not any(_region(module, pattern) for module in modules):
            near = difflib.get_close_matches(pattern, modules, n=3, cutoff=0.3) or modules[:3]
            raise TrainingError(
                f"recompute: {pattern!r} matches no submodule; expected a glob of paths such as "
                f"{', '.join(near) or 'those that from_torch leaves, but the model has none'}"
            )
    return result


def _region(path: str, pattern: str) -> str:
    """The first parts of a path that a pattern matches, part by part; empty where it does not."""
    parts, globs = path.split("."), pattern.split(".")
    matches = len(parts) >= len(globs) and all(fnmatchcase(p, g) for p, g in zip(parts, globs, strict=False))
    return ".".join(parts[: len(globs)]) if matches else ""
