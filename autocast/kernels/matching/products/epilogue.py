"""What is done to the results of products and convolutions: the chains of readers that their kernels compute too."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tvm import relax

from autocast.ir import dims, is_op, number_of, op_name, same_shape, shape_of, storage
from autocast.ir.rewriting import users_of
from autocast.kernels.explain import explain
from autocast.kernels.matching.functions import operation
from autocast.kernels.matching.kernel_rewriter import KernelRewriter
from autocast.kernels.matching.translate import is_rounded_load
from autocast.kernels.specs.products import ACTIVATIONS, Epilogue
from autocast.kernels.storage import LOW
from autocast.operators import Kind, is_kind


@dataclass
class Chain:
    """A product and the operators after it that its kernel computes too; `end` is what the kernel defines."""

    call: relax.Call
    end: relax.Var
    epilogue: Epilogue = field(default_factory=Epilogue)
    bias: relax.Expr | None = None
    residual: relax.Expr | None = None
    members: frozenset[relax.Var] = frozenset()


class EpilogueRewriter(KernelRewriter):
    """Rewrites products of a kind, each with the chain of its readers that an epilogue can hold.

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
        """The longest run of readers of `var` that an epilogue can hold; it does not end with what widens again."""
        chain = settled = Chain(call, var)
        while (reader := self.only_user(chain.end)) is not None and reader not in self.taken:
            longer = self.longer(chain, reader, self.bound[reader])
            if longer is None:
                break
            widens = is_op(self.bound[reader], "relax.astype") and storage(reader) == "float32"
            chain = replace(longer, members=chain.members | {reader})
            settled = settled if widens else chain
        return settled

    def longer(self, chain: Chain, reader: relax.Var, value: relax.Expr) -> Chain | None:
        epilogue, name = chain.epilogue, op_name(value)
        if name == "relax.astype":
            return self.cast(chain, reader)
        if storage(chain.end) in LOW:
            return None  # what is stored low is computed from float32: a cast comes first
        activation, operands = operation(value) or ("", ())
        numbers = tuple(operand for operand in operands[1:] if isinstance(operand, float))
        may_end = epilogue.activation is None and (not epilogue.residual or epilogue.residual_first)
        if ACTIVATIONS.get(activation) == len(numbers) == len(operands) - 1 and may_end:
            epilogue = replace(epilogue, activation=activation, activation_numbers=numbers)
            return replace(chain, end=reader, epilogue=epilogue)
        if name in ("relax.multiply", "relax.divide"):
            factor = _scalar(value.args[1] if value.args[0].same_as(chain.end) else value.args[0])
            if (
                factor is None
                or epilogue != Epilogue()
                or (name == "relax.divide" and not value.args[0].same_as(chain.end))
            ):
                return None
            scale = 1 / factor if name == "relax.divide" else factor
            return replace(chain, end=reader, epilogue=replace(epilogue, scale=scale))
        if name == "relax.add" and epilogue.residual is None:
            return self.added(chain, reader, value)
        return None

    def cast(self, chain: Chain, reader: relax.Var) -> Chain | None:
        """A result may be narrowed, and a product's sums are float32 still; what a cast has narrowed is rounded."""
        before, after = storage(chain.end), storage(reader)
        if before == "float32":
            return replace(chain, end=reader) if after in LOW else None
        if after != "float32":
            return None
        if self.bound[chain.end].same_as(chain.call):
            return replace(chain, end=reader)
        epilogue, (first, second) = chain.epilogue, chain.epilogue.roundings
        steps = (epilogue.activation is not None) + (epilogue.residual is not None)
        if steps == 2:
            return None
        roundings = (before, second) if steps == 0 else (first, before)
        return replace(chain, end=reader, epilogue=replace(epilogue, roundings=roundings))

    def added(self, chain: Chain, reader: relax.Var, value: relax.Call) -> Chain | None:
        first, second = value.args
        other = second if first.same_as(chain.end) else first
        if other.same_as(chain.end):
            return None
        factor, other = self.unscaled(other) if same_shape(dims(other), dims(chain.end)) else (None, other)
        epilogue, n = chain.epilogue, dims(chain.end)[-1]
        is_bias = same_shape(dims(other), (n,)) and factor is None
        stored, rounding = self.loaded(other, reshapes=is_bias)
        if storage(stored) not in ("float32", *LOW):
            return None
        if is_bias and epilogue == replace(Epilogue(), scale=epilogue.scale):
            epilogue = replace(epilogue, bias=storage(stored), bias_rounding=rounding)
            return replace(chain, end=reader, bias=stored, epilogue=epilogue)
        if same_shape(dims(other), dims(chain.end)):
            epilogue = replace(
                epilogue,
                residual=storage(stored),
                residual_rounding=rounding,
                residual_scale=factor,
                residual_first=epilogue.activation is None,
            )
            return replace(chain, end=reader, residual=stored, epilogue=epilogue)
        return None

    def unscaled(self, expr: relax.Expr) -> tuple[float | None, relax.Expr]:
        """The factor and the tensor whose product `expr` is; None and `expr` where it is none, or others read it."""
        value = self.value_of(expr)
        if is_op(value, "relax.multiply") and self.uses[expr] == 1 and storage(expr) == "float32":
            for number, data in (value.args, reversed(value.args)):
                if (factor := _scalar(number)) is not None:
                    return factor, data
        return None, expr

    def loaded(self, expr: relax.Expr, *, reshapes: bool) -> tuple[relax.Expr, str | None]:
        """What a kernel loads for `expr`, and the dtype that it rounds that to: loads widen, and see other shapes."""
        rounding = None
        while (value := self.value_of(expr)) is not None:
            if is_rounded_load(value, self.bound) and rounding is None:
                rounding = storage(expr)
            elif not (
                (is_op(value, "relax.astype") and storage(value.args[0]) in LOW and storage(expr) == "float32")
                or (reshapes and is_kind(value, Kind.VIEW))
            ):
                break
            expr = value.args[0]
        return expr, rounding


def _scalar(expr: relax.Expr) -> float | None:
    """The number that `expr` is; None where multiplying by it could change a shape."""
    return number_of(expr) if shape_of(expr) == () else None
