"""Order the calls of a training step so that memory is free again early."""

from __future__ import annotations

from collections import Counter

import tvm
from tvm import relax

from autocast.kernels.graph.rewriting import reads_of
from autocast.kernels.graph.state import num_state
from autocast.kernels.graph.tensors import Tensor, Tensors, is_alias, returned

#: Tensors of at most this many bytes cost nothing: what large ones wait for, a step count say, is computed at once.
SMALL = 4096


class _Order:
    """List scheduling: what frees as much as it takes goes first, everything else in program order.

    A call that replaces state waits for the other readers of that state, unless they wait for it.
    """

    def __init__(self, function: relax.Function) -> None:
        (block,) = function.body.blocks
        self.bindings = list(block.bindings)
        self.tensors = Tensors(function)
        self.reads: list[set[Tensor]] = []
        defined: dict[relax.Var, int] = {}
        self.users: list[set[int]] = [set() for _ in self.bindings]
        self.missing = [0] * len(self.bindings)
        for number, binding in enumerate(self.bindings):
            read = list(reads_of(binding.value))
            self.reads.append({tensor for var in read for tensor in self.tensors.of(var)})
            for var in read:
                if var in defined and number not in self.users[defined[var]]:
                    self.users[defined[var]].add(number)
                    self.missing[number] += 1
            self.tensors.bind(binding)
            defined[binding.var] = number
        self.pending: Counter = Counter(tensor for read in self.reads for tensor in read)
        for var in reads_of(function.body.body):
            self.pending.update(self.tensors.of(var))
        self.replaces = self._replacements(function, defined)

    def _replacements(self, function: relax.Function, defined: dict[relax.Var, int]) -> dict[int, list[Tensor]]:
        """The state that each binding replaces."""
        count = num_state(function)
        results = returned(self.bindings, function.body.body)
        inputs = int(function.attrs["num_input"])
        replaces: dict[int, list[Tensor]] = {}
        for param, result in zip(
            function.params[inputs - count : inputs], results[len(results) - count :], strict=True
        ):
            writer = self.tensors.of(result)[0][0] if self.tensors.of(result) else None
            if writer in defined:
                replaces.setdefault(defined[writer], []).append((param, 0))
        return replaces

    def ordered(self) -> list[relax.Binding]:
        """The bindings in their new order."""
        ready = sorted(number for number, count in enumerate(self.missing) if count == 0)
        order: list[int] = []
        while ready:
            number = self._next(ready)
            ready.remove(number)
            order.append(number)
            self.pending.subtract(self.reads[number])
            for user in sorted(self.users[number]):
                self.missing[user] -= 1
                if self.missing[user] == 0:
                    ready.append(user)
            ready.sort()
        return [self.bindings[number] for number in order]

    def _next(self, ready: list[int]) -> int:
        free = [number for number in ready if not self._must_wait(number)]
        for number in free:
            if self._taken(number) <= 0:
                return number
        return (free or ready)[0]

    def _must_wait(self, number: int) -> bool:
        replaced = self.replaces.get(number, ())
        return any(self.pending[tensor] > (tensor in self.reads[number]) for tensor in replaced)

    def _taken(self, number: int) -> int:
        """How many bytes more are held after a binding than before it."""
        binding = self.bindings[number]
        if is_alias(binding.value):
            return 0
        made = 0 if number in self.replaces else sum(map(self._size, self.tensors.of(binding.var)))
        return made - sum(self._size(tensor) for tensor in self.reads[number] if self.pending[tensor] == 1)

    def _size(self, tensor: Tensor) -> int:
        return self.tensors.size[tensor] if self.tensors.size[tensor] > SMALL else 0


@tvm.transform.module_pass(opt_level=0, name="OrderForMemory")
class OrderForMemory:
    """Move calls of a `main` with state to where they free the most memory.

    Before::                                   After::

        g2 = gradient2(x, y)                       g2 = gradient2(x, y)
        g1 = gradient1(x, g)                       q2 = update2(p2, g2)
        q1 = update1(p1, g1)                       g1 = gradient1(x, g)
        q2 = update2(p2, g2)                       q1 = update1(p1, g1)

    So a gradient lives until the next call, not until the end of the step. State is replaced after all else has read
    it, where that is possible: then it can be done in place.
    """

    def transform_module(self, mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """The module, as the class says."""
        main = mod["main"] if "main" in [var.name_hint for var in mod.get_global_vars()] else None
        if not isinstance(main, relax.Function) or not num_state(main):
            return mod
        blocks = main.body.blocks
        if len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
            return mod
        if any(isinstance(binding, relax.MatchCast) for binding in blocks[0].bindings):
            return mod
        body = relax.SeqExpr([relax.DataflowBlock(_Order(main).ordered())], main.body.body)
        mod = tvm.IRModule(mod.functions, attrs=mod.attrs)
        mod["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        return mod
