"""Order the calls of a training step so that memory is free again early."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import tvm
from tvm import relax

from autocast.ir import is_op, main_of, with_functions
from autocast.ir.foreign import packed_function
from autocast.ir.rewriting import reads_of
from autocast.kernels.state.in_place import IN_PLACE
from autocast.kernels.state.state import num_state
from autocast.kernels.state.tensors import Tensor, Tensors, is_alias, returned
from autocast.runtime.collectives import COPY, DONE, START
from autocast.runtime.sharding import GATHER_DONE, GATHER_START, SCATTER_DONE, SCATTER_START

#: Tensors of at most this many bytes cost nothing: what large ones wait for, a step count say, is computed at once.
SMALL = 4096


#: What begins to send something, and what waits for means that updates are made of.
_STARTS, _LAST = (START, SCATTER_START, GATHER_START), (SCATTER_DONE, GATHER_DONE)

#: How many bindings that lead to an update are looked at together: a gradient, what scales it, and the update.
_LOOK_AHEAD = 8


class _Order:
    """List scheduling: what frees as much as it takes goes first, everything else in program order.

    First of all come updates with the few bindings that they still wait for, the fewest first, so a gradient is used
    when it is computed.
    What replaces state waits for the other readers of that state, unless they wait for it. What waits for the network
    comes last, so that there is as much as possible to compute until it has answered.
    """

    def __init__(self, mod: tvm.IRModule, function: relax.Function) -> None:
        (block,) = function.body.blocks
        self.bindings = list(block.bindings)
        self.tensors = Tensors(function)
        self.reads: list[set[Tensor]] = []
        defined: dict[relax.Var, int] = {}
        self.users: list[set[int]] = [set() for _ in self.bindings]
        self.missing = [0] * len(self.bindings)
        for number, binding in enumerate(self.bindings):
            read = list(reads_of(binding.value))
            # Who renames a tensor does not read it: those who read it by that name do.
            tensors = {tensor for var in read for tensor in self.tensors.of(var)}
            self.reads.append(set() if is_alias(binding.value) else tensors)
            for var in read:
                if var in defined and number not in self.users[defined[var]]:
                    self.users[defined[var]].add(number)
                    self.missing[number] += 1
            self.tensors.bind(binding)
            defined[binding.var] = number
        self.pending: Counter = Counter(tensor for read in self.reads for tensor in read)
        for var in reads_of(function.body.body):
            self.pending.update(self.tensors.of(var))
        self.ready = [number for number, count in enumerate(self.missing) if count == 0]
        self.done = 0
        self._order_collectives()
        self._find_updates(mod, function, defined)

    def _order_collectives(self) -> None:
        """Let each collective wait for the one before it, so that all ranks begin them in one order; note the rest.

        What waits for the network, and all that reads what came, is `late`: everything else goes first. What others
        send is made of, such as statistics of a batch, is not.
        """
        begun = [number for number, binding in enumerate(self.bindings) if packed_function(binding.value) in _STARTS]
        for before, after in pairwise(begun):
            if after not in self.users[before]:
                self.users[before].add(after)
                self.missing[after] += 1
        self.ready = [number for number in self.ready if self.missing[number] == 0]
        sent = 0
        for number in reversed(range(len(self.bindings))):
            if number in begun or any(sent >> user & 1 for user in self.users[number]):
                sent |= 1 << number
        self.late = 0
        for number, binding in enumerate(self.bindings):
            called = packed_function(binding.value)
            waits = called in _LAST or (called in (DONE, COPY) and not sent >> number & 1)
            if waits or self.late >> number & 1:
                self.late |= 1 << number
                for user in self.users[number]:
                    self.late |= 1 << user

    def _find_updates(self, mod: tvm.IRModule, function: relax.Function, defined: dict[relax.Var, int]) -> None:
        """Note which bindings replace which state, and what they wait for."""
        count, inputs = num_state(function), int(function.attrs["num_input"])
        results = returned(self.bindings, function.body.body)
        self.replaces: dict[int, list[Tensor]] = {}
        self.replacing: dict[int, set[Tensor]] = {}
        for state, result in zip(function.params[inputs - count : inputs], results[-count:], strict=True):
            for last in self.tensors.of(result):
                for tensor in self._becoming(mod, last, (state, 0), defined):
                    self.replaces.setdefault(defined[tensor[0]], []).append((state, 0))
                    self.replacing.setdefault(defined[tensor[0]], set()).add(tensor)
        before = [1 << number for number in range(len(self.bindings))]
        for number, users in enumerate(self.users):
            for user in users:
                before[user] |= before[number]
        self.waiting = {number: before[number] for number in sorted(self.replaces)}

    def _becoming(
        self, mod: tvm.IRModule, tensor: Tensor, state: Tensor, defined: dict[relax.Var, int]
    ) -> Iterator[Tensor]:
        """What will be written over `state`: `tensor`, which replaces it, and before that what becomes it in place."""
        following: Tensor | None = tensor
        while following is not None and following[0] in defined:
            yield following
            number = defined[following[0]]
            call = self.bindings[number].value
            kernel = call.args[0] if is_op(call, "relax.call_tir") and state not in self.reads[number] else None
            pairs = (mod[kernel].attrs or {}).get(IN_PLACE, ()) if kernel is not None else ()
            operands = [
                self.tensors.of(call.args[1].fields[place]) for result, place in pairs if result == following[1]
            ]
            following = next((one[0] for one in operands if len(one) == 1 and self.pending[one[0]] == 1), None)

    def ordered(self) -> list[relax.Binding]:
        """The bindings in their new order."""
        order: list[int] = []
        while self.ready:
            for number in self._next():
                self.ready.remove(number)
                self.done |= 1 << number
                self.waiting.pop(number, None)
                self.pending.subtract(self.reads[number])
                for user in self.users[number]:
                    self.missing[user] -= 1
                    if self.missing[user] == 0:
                        insort(self.ready, user)
                order.append(number)
        return [self.bindings[number] for number in order]

    def _next(self) -> list[int]:
        """The bindings to go on with, in program order."""
        early = [number for number in self.ready if not self.late >> number & 1]
        for update in sorted(self.waiting, key=lambda update: (self.waiting[update] & ~self.done).bit_count()):
            left = self.waiting[update] & ~self.done
            if left.bit_count() > _LOOK_AHEAD:
                break
            if early and left & self.late:
                continue
            chain = [number for number in range(update + 1) if left >> number & 1]
            if not self._must_wait(chain) and self._taken(chain) <= 0:
                return chain
        free = [number for number in early or self.ready if not self._must_wait([number])]
        for number in free:
            if self._taken([number]) <= 0:
                return [number]
        return (free or early or self.ready)[:1]

    def _must_wait(self, chain: list[int]) -> bool:
        """Whether state that `chain` replaces is read by others that are not done."""
        return any(
            self.pending[state] > sum(state in self.reads[reader] for reader in chain if reader <= number)
            for number in chain
            for state in self.replaces.get(number, ())
        )

    def _taken(self, chain: list[int]) -> int:
        """How many bytes more are held after `chain` than before it."""
        reads = Counter(tensor for number in chain for tensor in self.reads[number])
        made = {
            tensor
            for number in chain
            if not is_alias(self.bindings[number].value)
            for tensor in self.tensors.of(self.bindings[number].var)
        }
        replaced = {tensor for number in chain if number in self.replaces for tensor in self.replacing[number]}
        kept = sum(self._size(tensor) for tensor in made - replaced if self.pending[tensor] > reads[tensor])
        return kept - sum(self._size(t) for t, count in reads.items() if t not in made and self.pending[t] == count)

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
        main = main_of(mod)
        if main is None or not num_state(main):
            return mod
        blocks = main.body.blocks
        if len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
            return mod
        if any(isinstance(binding, relax.MatchCast) for binding in blocks[0].bindings):
            return mod
        body = relax.SeqExpr([relax.DataflowBlock(_Order(mod, main).ordered())], main.body.body)
        ordered = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        return with_functions(mod, {"main": ordered})
