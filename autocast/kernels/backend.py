"""The seam between what kernels compute and who generates them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import tvm
from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize

from autocast.kernels.found import HEURISTIC, way_of

#: A destination-passing TIR function that computes a spec on a target, under a name; some take the way, too.
Generator: TypeAlias = Callable[..., tirx.PrimFunc]

#: The attribute of a PrimFunc that holds the same function for results that take an operand's place: what was just
#: read is in the caches, and stored there.
OVERWRITING = "autocast.overwriting"


def without_overwriting(mod: tvm.IRModule) -> tvm.IRModule:
    """The module without what `OVERWRITING` holds: TVM cannot write functions within attributes as text."""
    held = {var: function for var, function in mod.functions.items() if OVERWRITING in (function.attrs or {})}
    functions = {**mod.functions, **{var: function.without_attr(OVERWRITING) for var, function in held.items()}}
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos) if held else mod


class Backend:
    """The kernels of one kind of target, and what matching may ask of them.

    A kind is a subclass that `kernels.targets` lists under a key of TVM's targets. What it has no generator for is
    never matched: TVM computes that.

    Attributes
    ----------
    target
        The target that kernels are generated for.
    generators
        By the type of a spec, what generates kernels for it.
    """

    generators: ClassVar[Mapping[type, Generator]] = {}

    def __init__(self, target: tvm.target.Target) -> None:
        self.target = target

    def has(self, *specs: type) -> bool:
        """Whether there are generators for all of these types of specs."""
        return all(spec in self.generators for spec in specs)

    def generate(self, spec: Any, name: str, way: str | None = None) -> tirx.PrimFunc:
        """The kernel that computes `spec`, ready to be a function of a module.

        `way` is one of `ways(spec)`, or the heuristic's; None: the one that was measured to be the fastest.
        """
        ways = self.ways(spec)
        if way is None:
            way = way_of(spec, self.target, ways) if ways else HEURISTIC
        chosen = (ways[way],) if way != HEURISTIC else ()
        return self.generators[type(spec)](spec, self.target, name, *chosen).without_attr("global_symbol")

    def ways(self, spec: Any) -> Mapping[str, Any]:
        """What a generator may be given beside a spec, to compute it otherwise than it chooses to; by names."""
        return {}

    @property
    def multiplies(self) -> tuple[str, ...]:
        """The low dtypes that products multiply: what packs their operands narrows them to these for nothing."""
        return ()

    def prepacked(self, product: Any) -> Any | None:
        """The spec of the kernel that packs the second operand of a product once, if that is a parameter.

        None where the product reads it as fast as it is. The spec has `packed_dtype`.
        """
        return None

    def widens_rows(self, product: Any) -> bool:
        """Whether a product is worth a kernel before it that stores its first operand in float32."""
        return False

    def packed_recurrent(self, spec: Any, stored: str) -> Any:
        """The spec of the kernel that packs the weight of a recurrence, which reads no other; it is `stored` so."""
        raise NotImplementedError(f"{type(self).__name__} has no kernels of recurrences")

    def streams(self, results: Sequence[tuple[Sequence[int | str], str]]) -> bool:
        """Whether any of a kernel's results, as (shape, dtype), is stored past the caches: then its size is known."""
        return False


def rooted(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its body in a root block: TVM's analysis of what is a reshape asserts that there is one."""
    if isinstance(function.body, SBlockRealize):
        return function
    block = SBlock([], [], [], "root", function.body)
    return function.with_body(SBlockRealize([], tirx.const(True, "bool"), block))
