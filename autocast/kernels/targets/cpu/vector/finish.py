"""From sums in registers to the output: the epilogue of a product or a convolution, a vector at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent
from autocast.kernels.specs.epilogue import SUM, Epilogue
from autocast.kernels.specs.program import Step
from autocast.kernels.targets.cpu.vector import vector_math
from autocast.kernels.targets.cpu.vector.expression import FUNCTIONS
from autocast.kernels.targets.cpu.vector.unit import VectorUnit

#: Functions of so few instructions that they are applied where the sums are.
_LIGHT = frozenset(
    ("add", "clip", "maximum", "minimum", "multiply", "relu", "round_bfloat16", "round_float16", "subtract", "unfused")
)


def functions_ir(epilogue: Epilogue, unit: VectorUnit) -> str:
    """The LLVM functions that an epilogue calls."""
    names = sorted({name for name in epilogue.functions if name in vector_math.FUNCTIONS})
    return vector_math.math_ir(unit.lanes, tuple(names)) if names else ""


def declare(epilogue: Epilogue, shape: tuple[Extent, ...]) -> list[tirx.Buffer]:
    """Emit the parameters of a kernel that its epilogue reads; `shape` is the output's."""
    return [
        T.arg(f"operand{number}", T.buffer(shape[-1:] if operand.per_column else shape, operand.dtype))
        for number, operand in enumerate(epilogue.operands)
    ]


@dataclass(frozen=True)
class Finish:
    """An output, and what is done to sums on their way there.

    Attributes
    ----------
    view, operands
        Flat views of the output, and of what the epilogue reads: tensors are laid out as the output.
    streamed
        Whether whole vectors are stored past the caches, as `VectorUnit.store` says.
    """

    unit: VectorUnit
    epilogue: Epilogue
    view: tirx.Buffer
    operands: tuple[tirx.Buffer, ...] = ()
    streamed: bool = False

    @property
    def from_registers(self) -> bool:
        """Whether the epilogue is applied to sums in registers: not where it needs many registers itself."""
        return _LIGHT.issuperset(self.epilogue.functions)

    def of_columns(self, column: Extent, count: Extent | None) -> dict[int, tirx.Expr]:
        """Emit the steps that are the same in all rows, for `count` columns from `column` on; None: a whole vector."""
        values: dict[int, tirx.Expr] = {}
        for number in self.epilogue.same_in_all_rows():
            values[number] = self._computed(self.epilogue.steps[number], values, column, count)
        return values

    def store(self, sums: tirx.Expr, at: Extent, count: Extent | None, of_columns: Mapping[int, tirx.Expr]) -> None:
        """Emit what becomes of a vector of sums, whose place in the output is `at`."""
        values = dict(of_columns)
        for number, step in enumerate(self.epilogue.steps):
            if number not in values:
                values[number] = sums if step == SUM else self._computed(step, values, at, count)
        self.unit.store(self.view, at, values[len(values) - 1], count, streamed=self.streamed)

    def _computed(self, step: Step, values: Mapping[int, tirx.Expr], at: Extent, count: Extent | None) -> tirx.Expr:
        head, *operands = step
        if head == "constant":
            return self.unit.splat(float(operands[0]))
        if head == "load":
            return T.bind(self.unit.load(self.operands[operands[0]], at, count))
        return T.bind(self.unit.once(FUNCTIONS[head](*(values[operand] for operand in operands))))
