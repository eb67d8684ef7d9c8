"""What is done to the results of products and convolutions: the readers that their kernels compute too."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from tvm import relax

from autocast.ir import dims, is_op, is_tensor, number_of, op_name, same_shape, storage
from autocast.ir.rewriting import users_of
from autocast.kernels.explain import explain
from autocast.kernels.matching.functions import operation
from autocast.kernels.matching.kernel_rewriter import KernelRewriter
from autocast.kernels.matching.translate import SEEDED, Translation, declined
from autocast.kernels.specs.checks import STORAGE_DTYPES
from autocast.kernels.specs.epilogue import Epilogue, Operand
from autocast.kernels.storage import LOW

#: The most readers of one product that its kernel computes.
_MEMBERS = 24


@dataclass
class Chain:
    """A product and the operators after it that its kernel computes too; `end` is what the kernel defines.

    `operands` are what the epilogue reads.
    """

    call: relax.Call
    end: relax.Var
    epilogue: Epilogue = field(default_factory=Epilogue)
    operands: tuple[relax.Expr, ...] = ()
    members: frozenset[relax.Var] = frozenset()


class _Steps(Translation):
    """Collects the program of an epilogue: of the readers of one product, elements of the output's shape.

    Vectors along the columns are read as vectors, whatever view of them is added; tensors as they are.
    """

    def __init__(self, bound: dict[relax.Var, relax.Expr], product: relax.Var) -> None:
        self.readers = {product}
        super().__init__(bound, self.readers, dims(product))
        self.product, self.shape = product, dims(product)

    def computed(self, var: relax.Var) -> int:
        return self.step("sum") if var.same_as(self.product) else super().computed(var)

    def is_vector(self, shape: tuple) -> bool:
        """Whether a tensor of `shape` has one number for each column."""
        rest = shape[:-1]
        return bool(shape) and same_shape(shape[-1:], self.shape[-1:]) and same_shape(rest, (1,) * len(rest))

    def sees_through(self, operand: relax.Expr, view: tuple) -> bool:
        if self.is_vector(dims(operand)) or number_of(operand) is not None:
            return True
        return self.is_vector(view) and same_shape((math.prod(dims(operand)),), (math.prod(view),))

    def reads(self, expr: relax.Expr) -> bool:
        """Whether an epilogue can read what it does not compute."""
        expr, view, _ = self.source(expr)
        if number_of(expr) is not None:
            return True
        fits = same_shape(dims(expr), self.shape) or (self.is_vector(view) and len(view) <= len(self.shape))
        return storage(expr) in STORAGE_DTYPES and fits

    def load(self, expr: relax.Expr, view: tuple) -> int:
        return self.step("load", self.argument(expr))

    def epilogue(self, end: relax.Var) -> Epilogue:
        """The program that computes `end`."""
        self.output(end)
        operands = (
            Operand(storage(a), per_column=len(dims(a)) == 1 or not same_shape(dims(a), self.shape))
            for a in self.arguments
        )
        return Epilogue(tuple(self.builder.steps), tuple(operands))


class EpilogueRewriter(KernelRewriter):
    """Rewrites products of a kind, each with those of its readers that an epilogue can hold.

    Subclasses say what the products are (`declined`) and what to write in a chain's place (`lowered`).
    """

    #: The name that `explain` gives.
    rule: str
    #: The operators that they compute.
    operators: frozenset[str]

    def declined(self, call: relax.Call) -> str | None:
        """Why no kernel computes `call`, which is one of `operators`; None where one does."""
        raise NotImplementedError

    def lowered(self, chain: Chain) -> relax.Expr:
        """A call of a kernel that computes `chain`."""
        raise NotImplementedError

    def enter(self, function: relax.Function) -> None:
        """Find the chains of `function`."""
        self.bound, self.users = users_of(function)
        self.place = {var: place for place, var in enumerate(self.bound)}
        self.chains: dict[relax.Var, Chain] = {}
        self.taken: set[relax.Var] = set()
        for var, value in self.bound.items():
            if op_name(value) in self.operators:
                reason = self.declined(value)
                if reason is None:
                    chain = self.chain(var, value)
                    self.chains[chain.end] = chain
                    self.taken |= chain.members
                explain(self.rule, var, reason or f"up to {chain.end.name}", taken=reason is None)

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        """A kernel's call where a chain ends."""
        chain = self.chains.get(binding.var)
        return None if chain is None else self.lowered(chain)

    def chain(self, var: relax.Var, call: relax.Call) -> Chain:
        """The most readers of `var` that an epilogue can hold, of which nobody else reads but the last.

        So what it reads is computed without it. The last does not widen what was narrowed again.
        """
        steps, end, settled = _Steps(self.bound, var), var, {var}
        readers = steps.readers
        while len(readers) <= _MEMBERS:
            missing = {user for reader in readers for user in self.users.get(reader, ())} - readers
            known = sorted((user for user in missing if user in self.place), key=self.place.__getitem__)
            if not known or not self.fits(steps, known[0]):
                break
            readers |= {known[0], *self.scaled(steps, known[0])}
            inside = Counter(arg for reader in readers - {var} for arg in self.bound[reader].args)
            read_elsewhere = [reader for reader in readers if self.uses[reader] > inside[reader]]
            if read_elsewhere == [known[0]] and self.may_end(known[0]):
                end, settled = known[0], set(readers)
        readers.intersection_update(settled)
        return Chain(call, end, steps.epilogue(end), tuple(steps.arguments), frozenset(settled - {var}))

    def fits(self, steps: _Steps, reader: relax.Var) -> bool:
        """Whether `reader` is an elementwise function of what an epilogue has computed, and of what it can read."""
        value = self.bound[reader]
        is_cast = is_op(value, "relax.astype")
        known = ("", (value.args[0],)) if is_cast else operation(value)
        if known is None or reader in self.taken or is_op(value, *SEEDED) or declined(reader, value):
            return False
        # What is stored low is computed from float32: a cast comes first.
        operands = [operand for operand in known[1] if not isinstance(operand, float)]
        others = [operand for operand in operands if operand not in steps.readers]
        # Of a sum of products each adds itself to those before it, so that one tensor holds them all.
        if any(map(self.is_product, others)) and self.reads_tensors(steps):
            return False
        return same_shape(dims(reader), steps.shape) and all(
            is_cast or storage(operand) not in LOW if operand in steps.readers else steps.reads(operand)
            for operand in operands
        )

    def is_product(self, expr: relax.Expr) -> bool:
        """Whether a kernel of this kind computes `expr`, before it may be cast."""
        value = self.value_of(expr)
        return op_name(self.value_of(value.args[0]) if is_op(value, "relax.astype") else value) in self.operators

    def reads_tensors(self, steps: _Steps) -> bool:
        """Whether an epilogue reads more than vectors and numbers already."""
        read = (arg for reader in steps.readers for arg in self.bound[reader].args if not reader.same_as(steps.product))
        return any(same_shape(dims(arg), steps.shape) for arg in read if is_tensor(arg) and arg not in steps.readers)

    def scaled(self, steps: _Steps, reader: relax.Var) -> list[relax.Var]:
        """The operands of `reader` that are multiples of what an epilogue can read, and that nobody else reads."""
        return [
            operand
            for operand in self.bound[reader].args
            if isinstance(operand, relax.Var)
            and operand not in steps.readers
            and is_op(self.value_of(operand), "relax.multiply")
            and self.uses[operand] == 1
            and any(number_of(factor) is not None for factor in self.bound[operand].args)
            and self.fits(steps, operand)
        ]

    def may_end(self, reader: relax.Var) -> bool:
        """Whether a kernel may store `reader`."""
        widens = is_op(self.bound[reader], "relax.astype") and storage(reader) == "float32"
        return storage(reader) in STORAGE_DTYPES and not widens
