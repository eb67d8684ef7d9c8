"""How much memory a call takes: computed from the plan that the VM executes, not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, overload

from autocast.runtime.executable import Executable
from autocast.runtime.plan import Replay
from autocast.runtime.signature import Inputs
from autocast.runtime.tensors import bytes_of
from autocast.runtime.threads import wanted_threads
from autocast.terminal import summary_of_places, to_text

if TYPE_CHECKING:
    from rich.table import Table

MIB = 2**20


class MemoryStep(NamedTuple):
    """Memory while one kernel runs, in MiB; parameters, inputs and constants are not in it.

    Attributes
    ----------
    name : str
        The kernel.
    live : float
        Intermediate and output tensors that something still needs, this kernel's outputs among them.
    workspace : float
        Temporary memory inside the kernel.
    reserved : float
        What the VM's allocator took from the system so far. It keeps freed blocks and reuses one only for an equal
        number of pages, so this is `live` at least.
    module : str
        The torch submodules that the kernel's calls come from, as `encoder.layer.*.output x12`; of a backward operator
        those of its forward one. Empty where that is not known.
    """

    name: str
    live: float
    workspace: float
    reserved: float
    module: str = ""


@dataclass(frozen=True)
class MemoryTrace(Sequence[MemoryStep]):
    """What one call takes, kernel by kernel: a sequence of `MemoryStep` in the order of execution. All in MiB.

    Attributes
    ----------
    steps : tuple of MemoryStep
        One for each kernel call.
    inputs, params, constants : float
        The call's inputs, the model's parameters (its state included), and the literal tensors in its functions.
    unknown : int
        Allocations whose size depends on data: they are counted as nothing.
    """

    steps: tuple[MemoryStep, ...]
    inputs: float
    params: float
    constants: float
    unknown: int

    @overload
    def __getitem__(self, index: int) -> MemoryStep: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[MemoryStep, ...]: ...
    def __getitem__(self, index: int | slice) -> MemoryStep | tuple[MemoryStep, ...]:
        return self.steps[index]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def intermediates(self) -> float:
        """What a call adds to the process: reserved blocks (outputs among them) and the largest workspace."""
        reserved = max((step.reserved for step in self.steps), default=0.0)
        return reserved + max((step.workspace for step in self.steps), default=0.0)

    @property
    def peak_live(self) -> float:
        """The least that any allocator would need for this plan: live tensors and workspace, at the worst kernel."""
        return max((step.live + step.workspace for step in self.steps), default=0.0)

    @property
    def peak(self) -> float:
        """Everything: intermediates, inputs, parameters and constants."""
        return self.intermediates + self.inputs + self.params + self.constants

    def table(self) -> Table:
        """One row for each kernel in the order of execution; the title has the sums."""
        caption = f"{self.unknown} allocations depend on data and are not counted" if self.unknown else None
        from rich.table import Table  # not where nothing is shown: see `settings.table`

        table = Table(
            title=(
                f"peak {self.peak:.2f} MiB: intermediates {self.intermediates:.2f}, inputs {self.inputs:.2f}, "
                f"parameters {self.params:.2f}, constants {self.constants:.2f}"
            ),
            caption=caption,
        )
        table.add_column("kernel", overflow="fold")
        for name in ("live MiB", "workspace MiB", "reserved MiB"):
            table.add_column(name, justify="right", no_wrap=True)
        named = any(step.module for step in self)
        if named:
            table.add_column("module", overflow="fold")
        for step in self:
            sizes = (f"{size:.2f}" for size in (step.live, step.workspace, step.reserved))
            table.add_row(step.name, *sizes, *([step.module] if named else []))
        return table

    def __str__(self) -> str:
        return to_text(self.table())


def trace(executable: Executable, args: Inputs = ()) -> MemoryTrace:
    """The memory of one call, kernel by kernel: see `autocast.vm.trace_memory`, which compiles models first."""
    args = executable.signature.in_order(args)
    executable.signature.bind(args)
    program = executable.program
    shapes = [tuple(int(size) for size in value.shape) for value in (*args, *executable.held)]
    replay = Replay(program, wanted_threads()).run(shapes)
    modules = {name: summary_of_places(kernel.modules) for name, kernel in program.kernels.items()}
    steps = tuple(
        MemoryStep(step.name, step.live / MIB, step.workspace / MIB, step.reserved / MIB, modules.get(step.name, ""))
        for step in replay.steps
    )
    return MemoryTrace(
        steps=steps,
        inputs=sum(map(bytes_of, args)) / MIB,
        params=sum(map(bytes_of, executable.held)) / MIB,
        constants=program.constants / MIB,
        unknown=replay.unknown,
    )
