"""Replace matrix products, with what is done to their results, by generated kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, is_constant, is_op, op_name, permutation, same_shape, shape_of, storage
from autocast.ir.rewriting import rewrite_functions
from autocast.kernels.backend import Backend
from autocast.kernels.matching.products.epilogue import Chain, EpilogueRewriter
from autocast.kernels.matching.translate import is_in_memory, is_rounded_load
from autocast.kernels.specs.products import Product
from autocast.kernels.storage import LOW

#: What is often done to parameters before a product reads them.
_KEEPS_CONSTANT = (
    *("relax.astype", "relax.concat", "relax.permute_dims", "relax.reshape", "relax.strided_slice"),
    *("relax.multiply", "relax.subtract"),
)


@dataclass(frozen=True)
class _Operand:
    """A factor as it is stored: casts and transpositions that the kernel does while it packs are looked through."""

    expr: relax.Expr
    transposed: bool
    axes: tuple[int, ...] | None


@mutator
class _Products(EpilogueRewriter):
    rule, operators = "products", frozenset({"relax.matmul"})

    def enter(self, function: relax.Function) -> None:
        super().enter(function)
        self.wide: dict[relax.Expr, relax.Expr] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        result = super().visit_dataflow_block_(block)
        self.wide.clear()  # a block's inner variables are not known outside
        return result

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
                if not narrows and is_rounded_load(self.value_of(value.args[0]), self.bound):
                    break  # what moves it narrows it, too
                order = permutation(value)
                swapped = [*order[:-2], order[-1], order[-2]]
                if swapped[-1] != len(order) - 1:
                    continue
                transposed, expr = not transposed, value.args[0]
                axes = None if swapped == sorted(swapped) else tuple(swapped)
                if axes is not None:
                    break
        return _Operand(expr, transposed, axes)

    def is_free(self, expr: relax.Var, cast: relax.Call) -> bool:
        """Whether an argument's cast is done by the kernels that read it, so that its result need not exist.

        Of constant ones it is where there is one reader: else they are narrowed once, before the first call. Casts of
        computed values are left to what computes them: storing them narrowed is free there.
        """
        source = cast.args[0]
        inner = self.value_of(source)
        if is_op(inner, "relax.permute_dims"):
            source = inner.args[0]
        # What a product stores wide, as it has other readers, is in memory too.
        is_stored = op_name(self.value_of(source)) in self.operators and expr not in self.taken
        if (storage(source), storage(expr)) != ("float32", "bfloat16"):
            return False
        if not is_stored and not is_in_memory(source, self.bound):
            return False
        return self.uses[expr] == 1 or source not in self.parameters

    def stored(self, operand: _Operand, batch: tuple) -> tuple[relax.Expr, tuple[int, ...] | None]:
        """The kernel's argument, and the dimensions of `batch` in which it is repeated; None if it has no batch."""
        expr = self.new(operand.expr)
        if operand.axes is not None:
            expr = self.emit(relax.op.permute_dims(expr, list(operand.axes)))
        shape = dims(expr)
        leading, matrix = shape[:-2], shape[-2:] if len(shape) > 1 else (1, *shape)
        missing = len(batch) - len(leading)
        leading = (1,) * missing + leading
        differs = [not same_shape((have,), (want,)) for have, want in zip(leading, batch, strict=True)]
        repeated = tuple(axis for axis in range(len(batch)) if axis < missing or differs[axis])
        if len(repeated) == len(batch):
            return self.viewed(expr, matrix), None
        return self.viewed(expr, leading + matrix), repeated

    def viewed(self, expr: relax.Expr, shape: tuple) -> relax.Expr:
        """`expr` reshaped, if that is not its shape already."""
        return expr if same_shape(dims(expr), shape) else self.emit(relax.op.reshape(expr, relax.ShapeExpr(shape)))

    # ---- the kernel ----

    def lowered(self, chain: Chain) -> relax.Expr:
        # Where nothing multiplies bfloat16, packing does not round either: a cast is then a kernel's work of its own.
        narrows = "bfloat16" in self.backend.multiplies and all(map(_is_bfloat16, chain.call.args))
        first, second = chain.call.args
        left, right = self.operand(first, narrows), self.operand(second, narrows)
        if len(dims(second)) == 1:  # a matrix times a vector is the vector times the transposed matrix
            left, right = right, replace(left, transposed=not left.transposed)
            first, second = second, first
            columns = dims(second)[-2]
        else:
            columns = dims(second)[-1]
        rows = dims(first)[-2] if len(dims(first)) > 1 else 1
        batch = _batch(dims(first)[:-2], dims(second)[:-2]) or ()
        shape = (*batch, rows, columns)
        a, a_repeated = self.stored(left, batch)
        spec = Product(
            m=_known(rows),
            n=_known(columns),
            k=_known(dims(first)[-1]),
            a_dtype=storage(left.expr),
            b_dtype=storage(right.expr),
            out_dtype=storage(chain.end),
            transpose_a=left.transposed,
            transpose_b=right.transposed,
            batch=tuple(_known(dim) for dim in batch) or 1,
            a_batched=a_repeated is not None,
            a_repeated=a_repeated or (),
            epilogue=chain.epilogue,
            compute="bfloat16" if narrows else None,
        )
        if self.backend.widens_rows(spec):
            a, spec = self.widened(a), replace(spec, a_dtype="float32")
        b = self.packed(right, spec)
        if b is not None:
            spec = replace(spec, b_packed=True, transpose_b=False)
        else:
            b, b_repeated = self.stored(right, batch)
            spec = replace(spec, b_batched=b_repeated is not None, b_repeated=b_repeated or ())
        shapes = ((columns,) if operand.per_column else shape for operand in chain.epilogue.operands)
        operands = [self.viewed(self.new(x), wanted) for x, wanted in zip(chain.operands, shapes, strict=True)]
        kernel = self.kernel(spec, lambda number: f"product{number}_{_describe(spec)}")
        result = relax.call_tir(kernel, [a, b, *operands], relax.TensorType(shape, storage(chain.end)))
        wanted = dims(chain.end)
        return result if same_shape(shape, wanted) else relax.op.reshape(self.emit(result), relax.ShapeExpr(wanted))

    def widened(self, a: relax.Expr) -> relax.Expr:
        """`a` in float32: once for all the products of a block that read it."""
        if a not in self.wide:
            self.wide[a] = self.emit(relax.op.astype(a, "float32"))
        return self.wide[a]

    def packed(self, right: _Operand, spec: Product) -> relax.Expr | None:
        """The constant weight `right` as `spec` reads it fastest, to be computed once; None where it is read as it is.

        A weight that is read elsewhere too, such as an embedding that is also the last layer, would then exist twice.
        That is worth it where the copy is narrower: products then read half as much, and nothing is narrowed twice.
        """
        layout = self.backend.prepacked(spec)
        if layout is None or len(dims(right.expr)) != 2 or not self.never_changes(right.expr):
            return None
        if not self.is_read_by_products(right.expr) and layout.packed_dtype == storage(right.expr):
            return None
        dtypes = f"{spec.b_dtype}_{layout.packed_dtype}"
        kernel = self.kernel(layout, lambda number: f"pack{number}_{spec.n}x{spec.k}_{dtypes}")
        return self.emit(relax.call_tir(kernel, [self.new(right.expr)], self.results[kernel]))

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


def _declined(call: relax.Call) -> str | None:
    """Why no kernel computes the matmul `call`; None where one does."""
    left, right = call.args
    if shape_of(left) is None or shape_of(right) is None:
        return "a shape is not known"
    shapes = [dims(left), dims(right)]
    if storage(left) != storage(right) or storage(left) not in ("float32", *LOW):
        return f"operands are {storage(left)} and {storage(right)}"
    if max(len(shape) for shape in shapes) < 2:
        return "both operands are vectors"
    if any(dim == 0 for shape in shapes for dim in shape):
        return "an operand is empty"
    if _batch(shapes[0][:-2], shapes[1][:-2]) is None:
        return "whether the batch is broadcast is not known"
    return None


def _batch(left: tuple, right: tuple) -> tuple | None:
    """The leading dimensions of a product; None where it is not known which of them are repeated."""
    rank = max(len(left), len(right))
    pairs = [(1,) * (rank - len(shape)) + shape for shape in (left, right)]
    batch = []
    for one, other in zip(*pairs, strict=True):
        if not (same_shape((one,), (other,)) or 1 in (one, other)):
            return None
        batch.append(other if isinstance(one, int) and one == 1 else one)
    return tuple(batch)


def _is_bfloat16(expr: relax.Expr) -> bool:
    return storage(expr) == "bfloat16"


def _known(dim: object) -> int | None:
    return dim if isinstance(dim, int) else None


def _describe(spec: Product) -> str:
    sizes = "x".join("any" if size is None else str(size) for size in (*spec.batch_dims, spec.m, spec.n, spec.k))
    short = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
    dtypes = "_".join(short[dtype] for dtype in (spec.a_dtype, spec.b_dtype, spec.out_dtype))
    layout = ("t" if spec.transpose_a else "n") + ("p" if spec.b_packed else "t" if spec.transpose_b else "n")
    return "_".join([sizes, layout, dtypes, *spec.epilogue.words()])


def lower_products(mod: tvm.IRModule, backend: Backend) -> tvm.IRModule:
    """Rewrite every matmul, and what an epilogue can hold of its readers, to one call of a generated kernel.

    Before::                                               After::

        b: bf16 = R.permute_dims(R.astype(w, "bfloat16"))      y: bf16 = R.call_tir(
        c: f32 = R.matmul(a, b, out_dtype="float32")               product0_1024x3072x768_nt_bf16_f32_bf16_bias_gelu,
        y: bf16 = R.astype(R.nn.gelu(c + bias), "bfloat16")        (a, w, bias))

    Equal products share a kernel.
    """
    return rewrite_functions(mod, _Products, backend)
