"""Write results where an operand was: updates over the state that they replace, and over operands that die."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from autocast.ir import main_of, shape_of
from autocast.kernels.backend import OVERWRITING, without_overwriting
from autocast.kernels.state.state import num_state
from autocast.kernels.state.tensors import Lifetimes, Tensor, returned

#: The attribute of a PrimFunc that lists [result, argument] pairs, each counted from 0: the result may take the place
#: of the argument, because no element is written before the last time that it is read.
IN_PLACE = "autocast.in_place"

_COPY = "runtime.TVMTensorCopyFromTo"

#: How the names of kernels end that write a result in place of an operand.
SUFFIX = "_in_place"


def sharing(kernel: tirx.PrimFunc, pairs: Sequence[tuple[int, int]]) -> tirx.PrimFunc:
    """`kernel` without the arguments that it writes where it reads others: (written, read) in `pairs`, from 0.

    It has one buffer for both: generated code relies on different buffers sharing no memory. What was just read is in
    the caches, so nothing is stored past them.
    """
    kernel = (kernel.attrs or {}).get(OVERWRITING, kernel)
    return kernel.specialize({kernel.params[written]: kernel.params[read] for written, read in pairs})


class _Places(Lifetimes):
    """What each result of a function's kernels is written over.

    Attributes
    ----------
    of : dict of Var to Var
        An allocated tensor -> the state, or the earlier allocation, whose place it takes.
    shared : dict of Var to list of (int, int)
        The bindings of calls that read what they overwrite -> which argument is written, and which it is read as.
    copies : list of (Expr, Var)
        What has to be copied to the state when all calls are done.
    results : list of Expr
        What the function returns apart from its new state.
    state : list of Var
        The arguments that are state.
    """

    def __init__(self, mod: tvm.IRModule, function: relax.Function) -> None:
        super().__init__(mod, function)
        self.mod = mod
        self._calls: dict[int, tuple[list[list[Tensor]], int]] = {}
        self._kernels: dict[tvm.ir.GlobalVar, list[tuple[int, int]]] = {}
        self.of: dict[relax.Var, relax.Var] = {}
        self.shared: defaultdict[relax.Var, list[tuple[int, int]]] = defaultdict(list)
        self.copies: list[tuple[relax.Expr, relax.Var]] = []
        count = num_state(function)
        outputs = returned(self.bindings, function.body.body)
        kept = len(outputs) - count
        self.results = outputs[:kept]
        inputs = int((function.attrs or {}).get("num_input", len(function.params)))
        self.state = list(function.params[inputs - count : inputs])
        self.keep([*self.results, *(new for new in outputs[kept:] if not self._is_allocated(new))])
        for old, new in zip(self.state, outputs[kept:], strict=True):
            self._replace(old, new)
        for number, binding in enumerate(self.bindings):
            for result, argument in self._pairs(binding.value):
                self._reuse(number, result, argument)

    def _is_allocated(self, value: relax.Expr) -> bool:
        return [var in self.allocated for var, _ in self.tensors.of(value)] == [True]

    def are_callers(self, values: Sequence[relax.Expr], returned: set[relax.Var]) -> bool:
        """Whether results are all made by kernels for this call, each by itself; `returned` has those before, and then
        these, too."""
        held = [[self.of.get(var, var) for var, _ in self.tensors.of(value)] for value in values]
        new = {var for those in held for var in those}
        is_new = all(held) and new <= self.allocated and returned.isdisjoint(new) and len(new) == sum(map(len, held))
        returned |= new
        return is_new

    def _replace(self, old: relax.Var, new: relax.Expr) -> None:
        """Let the kernel that computes `new` write it to the state `old`; a copy where it cannot."""
        if self._is_allocated(new) and _same_type(new, old):
            ((var, _),) = self.tensors.of(new)
            if self._write_over(old, var):
                return
        if not (isinstance(new, relax.Var) and self.tensors.of(new) == [(old, 0)]):
            self.copies.append((new, old))
            self.keep([new])

    def _write_over(self, old: relax.Var, new: relax.Var) -> bool:
        """Whether `new` takes the place of the state `old`; then so does what becomes `new` in place, if it can."""
        writer, reader = self.first[(new, 0)], self.last.get((old, 0), -1)
        pair = self._shared(writer, old, new) if reader == writer else None
        if new in self.of or not _same_type(new, old) or (reader >= writer and pair is None):
            return False
        dying = self._dying(writer, new) if pair is None else None
        self.of[new] = old
        if dying is not None and self._write_over(old, dying[0]):
            pair = dying[1]
        if pair is not None:
            self.shared[self.bindings[writer].var].append(pair)
        return True

    def _dying(self, number: int, new: relax.Var) -> tuple[relax.Var, tuple[int, int]] | None:
        """An allocation whose place `new` may take, as kernel `number` is the last that reads it, and their places."""
        for argument in self.bindings[number].value.args:
            for var, _ in self.tensors.of(argument):
                if var in self.allocated and self.last[(var, 0)] == number:
                    pair = self._shared(number, var, new)
                    if pair is not None:
                        return var, pair
        return None

    def _reuse(self, number: int, result: int, argument: int) -> None:
        """Let a result of a kernel take the place of an operand that nothing reads later."""
        args, outputs = self._arguments(number)
        if len(args[argument]) != 1:
            return
        ((old, _),), ((new, _),) = args[argument], args[outputs + result]
        old = self.of.get(old, old)
        if old not in self.allocated or new in self.of or not _same_type(old, new):
            return
        pair = self._shared(number, args[argument][0][0], new) if self.last[(old, 0)] == number else None
        if pair is not None:
            self.of[new] = old
            self.last[(old, 0)] = self.last[(new, 0)]
            self.shared[self.bindings[number].var].append(pair)

    def _shared(self, number: int, old: relax.Var, new: relax.Var) -> tuple[int, int] | None:
        """Where a kernel that reads `old` once may write its result `new` there: the places of `new` and `old`."""
        call = self.bindings[number].value
        args, outputs = self._arguments(number)
        places = [self.of.get(var, var) for tensors in args for var, _ in tensors]
        if sum(place.same_as(self.of.get(old, old)) for place in places) != 1:
            return None
        for result, argument in self._pairs(call):
            written = outputs + result
            same = args[argument] == [(old, 0)] and args[written] == [(new, 0)]
            if same and _same_type(call.args[argument], call.args[written]):
                return written, argument
        return None

    def _arguments(self, number: int) -> tuple[list[list[Tensor]], int]:
        """The tensors of a kernel's arguments, and which argument is the first that it writes."""
        if number not in self._calls:
            args = [self.tensors.of(arg) for arg in self.bindings[number].value.args]
            written = (
                place
                for place, tensors in enumerate(args)
                if len(tensors) == 1 and tensors[0][0] in self.allocated and self.first[tensors[0]] == number
            )
            self._calls[number] = args, next(written)
        return self._calls[number]

    def _pairs(self, value: relax.Expr) -> Sequence[tuple[int, int]]:
        """The results of a kernel that may be written over arguments, if `value` calls one."""
        if not (isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)):
            return ()
        if value.op not in self._kernels:
            pairs = (self.mod[value.op].attrs or {}).get(IN_PLACE, ())
            self._kernels[value.op] = [(int(result), int(argument)) for result, argument in pairs]
        return self._kernels[value.op]


def _tuples(type: tvm.ir.Type) -> int:
    """How many tuples there are around the first value in a type."""
    if not isinstance(type, tvm.ir.TupleType):
        return 0
    return 1 + (_tuples(type.fields[0]) if type.fields else 0)


def _same_type(one: relax.Expr, other: relax.Expr) -> bool:
    return tvm_ffi.structural_equal(one.ty, other.ty)


@mutator
class _Writer(PyExprMutator):
    """Leaves out the allocations that `places` makes needless."""

    def __init__(self, mod: tvm.IRModule, places: _Places) -> None:
        super().__init__(mod)
        self.places = places
        self.mod = mod
        self.kernels: dict[tuple[tvm.ir.GlobalVar, tuple[tuple[int, int], ...]], tvm.ir.GlobalVar] = {}
        self.returned: set[relax.Var] = set()

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var in self.places.of:
            self.set_var_remap(binding.var, self.visit_expr(self.places.of[binding.var]))
        elif binding.var in self.places.shared:
            call = binding.value
            pairs = tuple(sorted(self.places.shared[binding.var]))
            written = [place for place, _ in pairs]
            args = [self.visit_expr(arg) for place, arg in enumerate(call.args) if place not in written]
            kernel = self.in_place(call.op, pairs)
            self.builder_.emit(relax.Call(kernel, args, call.attrs, call.ty_args), binding.var.name)
        else:
            super().visit_var_binding_(binding)

    def in_place(self, kernel: tvm.ir.GlobalVar, pairs: tuple[tuple[int, int], ...]) -> tvm.ir.GlobalVar:
        """The copy of a kernel that shares arguments: one for all calls with the same `pairs`."""
        if (kernel, pairs) not in self.kernels:
            function = sharing(self.mod[kernel], pairs)
            self.kernels[kernel, pairs] = self.builder_.add_func(function, f"{kernel.name_hint}{SUFFIX}")
        return self.kernels[kernel, pairs]

    def written(self, function: relax.Function) -> relax.Function:
        """`function` without its new state among its results."""
        blocks = [self.visit_binding_block(block) for block in function.body.blocks]
        self.builder_._begin_binding_block()
        fields = [self.result(value) for value in self.places.results]
        copies = [(self.visit_expr(value), state) for value, state in self.places.copies]
        overwritten = {state for _, state in copies}
        for value, state in [(self.spare(value) if value in overwritten else value, state) for value, state in copies]:
            self.copy(value, state)
        blocks.append(self.builder_._end_block())
        # A function may say less of its result than is known of what it returns, but not hide a tuple.
        alone = len(fields) == 1 and (
            self.places.state or _tuples(self.places.results[0].ty) == _tuples(function.ret_ty)
        )
        result = fields[0] if alone else relax.Tuple(fields)
        body = self.builder_.normalize(relax.SeqExpr([block for block in blocks if block.bindings], result))
        return relax.Function(function.params, body, None, function.is_pure, function.attrs)

    def result(self, value: relax.Expr) -> relax.Expr:
        """What is returned for a result: never an input, state, a parameter, a constant or another result itself, which
        the caller could change.

        Nor is what a branch or a function of the module returned, which may be any of them.
        """
        new = self.visit_expr(value)
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self.result(field) for field in value.fields])
        if self.places.are_callers([value], self.returned):
            return new
        if isinstance(value.ty, tvm.ir.TupleType):
            return relax.Tuple([self.owned(new, i) for i in range(len(value.ty.fields))])
        return self.spare(new)

    def owned(self, whole: relax.Expr, index: int) -> relax.Expr:
        """A copy of all tensors in field `index` of a tuple."""
        field = self.builder_.emit(relax.TupleGetItem(whole, index))
        if isinstance(field.ty, tvm.ir.TupleType):
            return relax.Tuple([self.owned(field, i) for i in range(len(field.ty.fields))])
        return self.spare(field)

    def spare(self, value: relax.Expr) -> relax.Expr:
        """Emit a copy of a tensor; what is none, or has a shape that only running tells, stays as it is."""
        if shape_of(value) is None:
            return value
        shape = relax.ShapeExpr(value.ty.shape.values)
        copied = self.builder_.emit(relax.op.builtin.alloc_tensor(shape, str(value.ty.dtype), 0))
        self.copy(value, copied)
        return copied

    def copy(self, value: relax.Expr, to: relax.Var) -> None:
        """Emit that `value` is copied to a tensor that exists."""
        self.builder_.emit(relax.Call(relax.ExternFunc(_COPY), [value, to], ty_args=[tvm.ir.TupleType([])]))


@tvm.transform.module_pass(opt_level=0, name="WriteInPlace")
class WriteInPlace:
    """Write the new state of `main` over the old, and results of kernels over operands that nothing reads later.

    Before::                                     After::

        q = alloc_tensor(...)                        update_in_place(p, g, p)
        update(p, g, q)                              return y
        return (y, q)

    A kernel says by its attribute `autocast.in_place` whose place a result may take while it reads it. New state that
    cannot be written in place, because the old one is read later, say, is copied at the end. So is a result that is an
    input, a parameter, a constant or another result: what the caller does with it must change nothing else.
    """

    def transform_module(self, mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """The module, as the class says; no kernel holds the one to take for results in place of operands any more."""
        return without_overwriting(self._written(mod))

    def _written(self, mod: tvm.IRModule) -> tvm.IRModule:
        main = main_of(mod)
        if main is None:
            return mod
        places = _Places(mod, main)
        if not places.of and not places.state and places.are_callers(places.results, set()):
            return mod
        writer = _Writer(mod, places)
        function = writer.written(main)
        mod = tvm.IRModule(writer.builder_.get().functions, attrs=mod.attrs, global_infos=mod.global_infos)
        var = mod.get_global_var("main")
        if not tvm_ffi.structural_equal(function.ty, main.ty):
            del mod[var]
            var = tvm.ir.GlobalVar("main")
            relax.expr._update_type(var, function.ty)
        mod[var] = function  # by the variable that its callers know, itself among them
        return mod
