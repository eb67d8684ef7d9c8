"""Write losses of labels as comparisons, choices and sums over rows, which row kernels fuse with the softmax."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from autocast.ir import dims, dtype_of, is_op, shape_of
from autocast.ir.rewriting import BindingRewriter, rewrite_functions

op = relax.op

#: Losses, and the argument that is predictions.
LOSSES = {"relax.nn.cross_entropy_with_logits": 0, "relax.nn.nll_loss": 0, "relax.grad.nll_loss_backward": 1}


@mutator
class _Losses(BindingRewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if is_op(call, "relax.nn.cross_entropy_with_logits"):
            return self.cross_entropy(call)
        if is_op(call, "relax.nn.nll_loss") and _is_taken(call.args[0]):
            return self.loss(call, *[self.new(operand) for operand in call.args])
        if is_op(call, "relax.nn.nll_loss") and call.attrs.reduction != "none":
            return self.reduced(call, *[self.new(operand) for operand in call.args])
        if is_op(call, "relax.grad.nll_loss_backward") and _is_taken(call.args[1]):
            return self.gradient(call, *[self.new(operand) for operand in call.args])
        return None

    def cross_entropy(self, call: relax.Call) -> relax.Expr | None:
        """-sum(predictions * labels) / rows, the sum first along rows."""
        predictions, labels = (self.new(operand) for operand in call.args)
        shape = shape_of(predictions)
        if dtype_of(predictions) != "float32" or shape is None or len(shape) != 2 or not isinstance(shape[0], int):
            return None
        rows = self.emit(op.sum(self.emit(op.multiply(predictions, labels)), axis=[-1]))
        return op.divide(self.emit(op.negative(self.emit(op.sum(rows)))), relax.const(float(shape[0]), "float32"))

    def loss(
        self, call: relax.Call, predictions: relax.Expr, targets: relax.Expr, weights: relax.Expr | None = None
    ) -> relax.Expr:
        """-predictions[row, target] * weight, summed or averaged as asked."""
        here, valid = self.places(call, predictions, targets)
        zero = relax.const(0.0, "float32")
        picked = self.emit(op.sum(self.emit(op.where(here, predictions, zero)), axis=[-1], keepdims=True))
        weight = self.weights(here, valid, weights)
        losses = self.emit(op.multiply(self.emit(op.negative(self.emit(op.where(valid, picked, zero)))), weight))
        if call.attrs.reduction == "none":
            return op.reshape(losses, shape_of(call.args[1]))
        total = self.emit(op.sum(losses))
        return op.divide(total, self.emit(op.sum(weight))) if call.attrs.reduction == "mean" else total

    def reduced(
        self, call: relax.Call, predictions: relax.Expr, targets: relax.Expr, weights: relax.Expr | None = None
    ) -> relax.Expr:
        """The sum, or the mean, of the losses of single pixels, which TVM finds."""
        ignored = int(call.attrs.ignore_index)
        losses = self.emit(op.nn.nll_loss(predictions, targets, weights, "none", ignored))
        total = op.sum(losses)
        if call.attrs.reduction == "sum":
            return total
        dtype = dtype_of(targets)
        valid = self.emit(op.not_equal(targets, relax.const(ignored, dtype)))
        weight = self.emit(op.astype(valid, dtype_of(call)))
        if weights is not None:
            label = self.emit(op.where(valid, targets, relax.const(0, dtype)))
            weight = self.emit(op.multiply(weight, self.emit(op.take(weights, label, axis=0))))
        return op.divide(self.emit(total), self.emit(op.sum(weight)))

    def gradient(
        self,
        call: relax.Call,
        adjoint: relax.Expr,
        predictions: relax.Expr,
        targets: relax.Expr,
        weights: relax.Expr | None = None,
    ) -> relax.Expr:
        """-adjoint * weight in the target's column, 0 in the others."""
        here, valid = self.places(call, predictions, targets)
        weight = self.weights(here, valid, weights)
        if call.attrs.reduction == "none":
            adjoint = self.emit(op.reshape(adjoint, shape_of(weight)))
        if call.attrs.reduction == "mean":
            adjoint = self.emit(op.divide(adjoint, self.emit(op.sum(weight))))
        factor = self.emit(op.multiply(self.emit(op.negative(adjoint)), weight))
        return op.where(here, factor, relax.const(0.0, "float32"))

    def places(self, call: relax.Call, predictions: relax.Expr, targets: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
        """Where a column is the target of its row, and which targets are not to be ignored: (rows, 1)."""
        rows, columns = dims(predictions)
        dtype = dtype_of(targets)
        targets = self.emit(op.reshape(targets, (rows, 1)))
        here = self.emit(op.equal(self.emit(op.arange(0, columns, 1, dtype)), targets))
        return here, self.emit(op.not_equal(targets, relax.const(int(call.attrs.ignore_index), dtype)))

    def weights(self, here: relax.Expr, valid: relax.Expr, weights: relax.Expr | None) -> relax.Expr:
        """The weight of each row, 0 where its target is to be ignored."""
        if weights is None:
            return self.emit(op.astype(valid, "float32"))
        zero = relax.const(0.0, "float32")
        weight = self.emit(op.sum(self.emit(op.where(here, weights, zero)), axis=[-1], keepdims=True))
        return self.emit(op.where(valid, weight, zero))


def _is_taken(predictions: relax.Expr) -> bool:
    return dtype_of(predictions) == "float32" and is_matrix(predictions)


def is_matrix(predictions: relax.Expr) -> bool:
    """Whether `predictions` are those of a row for each label, whose losses are row operators."""
    shape = shape_of(predictions)
    return shape is not None and len(shape) == 2


def decompose_losses(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite nll_loss of a matrix and its gradient, and cross_entropy_with_logits, to operators that work on rows.

    Of images, the losses of single pixels are left to TVM, and added up in blocks.

    Before::                                After::

        l = R.nn.nll_loss(p, t)                 h = R.equal(R.arange(0, columns), R.reshape(t, [rows, 1]))
                                                v = R.not_equal(R.reshape(t, [rows, 1]), ignored)
                                                s = R.sum(R.where(h, p, 0), axis=[-1], keepdims=True)
                                                w = R.astype(v, "float32")
                                                n = R.multiply(R.negative(R.where(v, s, 0)), w)
                                                l = R.divide(R.sum(n), R.sum(w))
    """
    return rewrite_functions(mod, _Losses)
