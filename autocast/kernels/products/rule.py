"""Replace matrix products, with what is done to their results, by generated kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import is_constant, is_op, op_name, shape_of
from autocast.kernels.graph.canonicalize import permutation, same_shape
from autocast.kernels.graph.operators import LOW
from autocast.kernels.graph.rewriting import dims, rewrite_functions, storage
from autocast.kernels.products.epilogue import Chain, EpilogueRewriter
from autocast.kernels.products.kernel import Product, product
from autocast.kernels.products.prepack import PackedWeight, pack_weight
from autocast.kernels.target import instruction_set

#: What is often done to parameters before a product reads them.
_KEEPS_CONSTANT = ("relax.astype", "relax.concat", "relax.multiply", "relax.permute_dims", "relax.reshape")


@dataclass(frozen=True)
class _Operand:
    """A factor as it is stored: casts and transpositions that the kernel does while it packs are looked through."""

    expr: relax.Expr
    transposed: bool
    axes: tuple[int, ...] | None


@mutator
class _Products(EpilogueRewriter):
    kind, operators = "product", frozenset({"relax.matmul"})

    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target):
        super().__init__(mod)
        self.target, self.isa = target, instruction_set(target)
        self.packings: dict[PackedWeight, tvm.ir.GlobalVar] = {}
        self.kernels: dict[Product, tvm.ir.GlobalVar] = {}

    def declined(self, call: relax.Call) -> str | None:
        return _declined(call)

    # ---- what the kernel reads ----

    def operand(self, expr: relax.Expr, narrows: bool) -> _Operand:
        """`expr` without the narrowing, and without the transposition, that reads it while packing can do."""
        transposed, axes = False, None
        for _ in range(2):
            value = self.value_of(expr)
            if narrows and is_op(value, "relax.astype") and self.is_free(expr, value):
                expr = value.args[0]
            elif is_op(value, "relax.permute_dims") and axes is None:
                order = permutation(value)
                swapped = [*order[:-2], order[-1], order[-2]]
                if swapped[-1] != len(order) - 1:
                    continue
                transposed, expr = True, value.args[0]
                axes = None if swapped == sorted(swapped) else tuple(swapped)
                if axes is not None:
                    break
        return _Operand(expr, transposed, axes)

    def is_free(self, expr: relax.Var, cast: relax.Call) -> bool:
        """Whether a parameter's cast is done by the one kernel that reads it, so that its result need not exist.

        Casts of computed values are left to what computes them: storing them narrowed is free there.
        """
        source = cast.args[0]
        inner = self.value_of(source)
        if is_op(inner, "relax.permute_dims"):
            source = inner.args[0]
        narrowing = storage(source) == "float32" and storage(expr) == "bfloat16"
        return narrowing and isinstance(source, relax.Var) and source not in self.bound and self.uses[expr] == 1

    def stored(self, operand: _Operand) -> relax.Expr:
        expr = self.new(operand.expr)
        return expr if operand.axes is None else self.emit(relax.op.permute_dims(expr, list(operand.axes)))

    # ---- the kernel ----

    def lowered(self, chain: Chain) -> relax.Expr:
        narrows = all(storage(factor) == "bfloat16" for factor in chain.call.args)
        left, right = (self.operand(factor, narrows) for factor in chain.call.args)
        left_shape, right_shape = (dims(factor) for factor in chain.call.args)
        batch = left_shape[:-2] if len(left_shape) > 2 else right_shape[:-2]
        out_type = relax.TensorType(dims(chain.end), storage(chain.end))
        spec = Product(
            m=_known(left_shape[-2]),
            n=_known(right_shape[-1]),
            k=_known(left_shape[-1]),
            a_dtype=storage(left.expr),
            b_dtype=storage(right.expr),
            out_dtype=storage(chain.end),
            transpose_a=left.transposed,
            transpose_b=right.transposed,
            batch=tuple(_known(dim) for dim in batch) or 1,
            a_batched=len(left_shape) > 2,
            b_batched=len(right_shape) > 2,
            epilogue=chain.epilogue,
            compute="bfloat16" if narrows else None,
        )
        packed = self.packed(right, spec)
        if packed is not None:
            spec = replace(spec, b_packed=True, transpose_b=False)
        arguments = [self.stored(left), self.stored(right) if packed is None else packed]
        arguments += [self.new(extra) for extra in (chain.bias, chain.residual) if extra is not None]
        return relax.call_tir(self.kernel(spec), arguments, out_type)

    def packed(self, right: _Operand, spec: Product) -> relax.Expr | None:
        """The constant weight `right` as `spec` reads it fastest, to be computed once; None where it is read as it is.

        A weight that is read elsewhere too, such as an embedding that is also the last layer, would then exist twice.
        That is worth it where the copy is narrower: products then read half as much, and nothing is narrowed twice.
        """
        layout = PackedWeight.of(spec, self.isa)
        if layout is None or right.axes is not None or not self.never_changes(right.expr):
            return None
        if not self.is_read_by_products(right.expr) and layout.packed_dtype == storage(right.expr):
            return None
        if layout not in self.packings:
            name = f"pack{len(self.packings)}_{layout.n}x{layout.k}_{layout.dtype}_{layout.packed_dtype}"
            function = pack_weight(layout, self.isa, name).without_attr("global_symbol")
            self.packings[layout] = self.builder_.add_func(function, name)
        out_type = relax.TensorType(layout.shape, layout.packed_dtype)
        return self.emit(relax.call_tir(self.packings[layout], [self.new(right.expr)], out_type))

    def never_changes(self, expr: relax.Expr) -> bool:
        """Whether `expr` depends on nothing but parameters."""
        if expr in self.parameters or is_constant(expr):
            return True
        value = self.value_of(expr)
        operands = value.args if op_name(value) in _KEEPS_CONSTANT else ()
        return bool(operands) and all(self.never_changes(x) for x in operands if isinstance(x.ty, relax.TensorType))

    def is_read_by_products(self, weight: relax.Expr) -> bool:
        """Whether products are all that reads `weight`, whether as it is or transposed or narrowed first."""
        if not isinstance(weight, relax.Var):
            return True
        readers = self.users.get(weight, [])
        return self.uses[weight] == len(readers) and all(
            (is_op(value, "relax.matmul") and weight.same_as(value.args[1]) and not weight.same_as(value.args[0]))
            or (is_op(value, "relax.astype", "relax.permute_dims") and self.is_read_by_products(reader))
            for reader, value in ((reader, self.value_of(reader)) for reader in readers)
        )

    def kernel(self, spec: Product) -> tvm.ir.GlobalVar:
        """The function that computes `spec`: one for all equal products of the module."""
        if spec not in self.kernels:
            name = f"product{len(self.kernels)}_{_describe(spec)}"
            function = product(spec, self.target, name).without_attr("global_symbol")
            self.kernels[spec] = self.builder_.add_func(function, name)
        return self.kernels[spec]


def _declined(call: relax.Call) -> str | None:
    """Why no kernel computes the matmul `call`; None where one does."""
    left, right = call.args
    if shape_of(left) is None or shape_of(right) is None:
        return "a shape is not known"
    shapes = [dims(left), dims(right)]
    if storage(left) != storage(right) or storage(left) not in ("float32", *LOW):
        return f"operands are {storage(left)} and {storage(right)}"
    if min(len(shape) for shape in shapes) < 2:
        return "an operand is a vector"
    if any(dim == 0 for shape in shapes for dim in shape):
        return "an operand is empty"
    if min(len(shape) for shape in shapes) > 2 and not same_shape(shapes[0][:-2], shapes[1][:-2]):
        return "the batch is broadcast"
    return None


def _known(dim: object) -> int | None:
    return dim if isinstance(dim, int) else None


def _describe(spec: Product) -> str:
    sizes = "x".join("any" if size is None else str(size) for size in (*spec.batch_dims, spec.m, spec.n, spec.k))
    short = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
    dtypes = "_".join(short[dtype] for dtype in (spec.a_dtype, spec.b_dtype, spec.out_dtype))
    epilogue = spec.epilogue
    extras = [
        "scale" if epilogue.scale is not None else "",
        "bias" if epilogue.bias else "",
        epilogue.activation or "",
        "residual" if epilogue.residual else "",
    ]
    layout = ("t" if spec.transpose_a else "n") + ("p" if spec.b_packed else "t" if spec.transpose_b else "n")
    return "_".join([sizes, layout, dtypes, *filter(None, extras)])


def lower_products(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Rewrite every matmul, and what an epilogue can hold of its readers, to one call of a generated kernel.

    Before::                                               After::

        b: bf16 = R.permute_dims(R.astype(w, "bfloat16"))      y: bf16 = R.call_tir(
        c: f32 = R.matmul(a, b, out_dtype="float32")               product0_1024x3072x768_nt_bf16_f32_bf16_bias_gelu,
        y: bf16 = R.astype(R.nn.gelu(c + bias), "bfloat16")        (a, w, bias))

    Equal products share a kernel.
    """
    return rewrite_functions(mod, _Products, target)
