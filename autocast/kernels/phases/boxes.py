"""TVM's suppression of overlapping boxes, by ours: its own forgets boxes, and answers other sizes than it says."""

from __future__ import annotations

from tvm import relax

from autocast.ir import dims, dtype_of
from autocast.kernels.phases.searching import Emit
from autocast.operators import own

op = relax.op


def suppress_each_class(
    emit: Emit,
    call: relax.Call,
    boxes: relax.Expr,
    scores: relax.Expr,
    most: relax.Expr,
    overlap: relax.Expr,
    least: relax.Expr,
) -> relax.Expr:
    """Boxes that are kept, in the order of classes and of scores in them, then zeros; and how many there are.

    In "onnx" format a row is (image, class, box), of all images together; in "tensorflow" (class, box), of each image,
    and the scores are given, too.
    """
    limits = ((most, "int64"), (overlap, "float32"), (least, "float32"))
    one_by_one = [emit(op.reshape(emit(op.astype(limit, dtype)), [1])) for limit, dtype in limits]
    order = emit(own.suppress(boxes, scores, *one_by_one, centred=0))
    batch, classes, count = dims(scores)
    is_onnx = str(call.attrs.output_format) == "onnx"
    images, places = (1, batch * classes * count) if is_onnx else (batch, classes * count)

    flat = emit(op.reshape(order, [images, places]))
    kept = emit(op.greater_equal(flat, relax.const(0, "int64")))
    total = emit(op.sum(emit(op.astype(kept, "int64")), 1))
    first = emit(op.argsort(emit(op.astype(op.logical_not(kept), "int32")), 1, False, "int64"))
    is_row = emit(op.less(op.arange(0, places, 1, "int64"), op.expand_dims(total, 1)))

    def size(extent: object) -> relax.Expr:
        return emit(op.shape_to_tensor(relax.ShapeExpr([extent])))

    def row(value: relax.Expr) -> relax.Expr:
        return emit(op.where(is_row, value, op.zeros((), dtype_of(value))))

    group = emit(op.floor_divide(first, size(count)))  # of a class in an image
    box = emit(op.gather_elements(flat, first, 1))
    if is_onnx:
        image, class_ = (emit(divide(group, size(classes))) for divide in (op.floor_divide, op.floor_mod))
        rows = emit(op.stack([row(part) for part in (image, class_, box)], axis=2))
        return relax.Tuple([emit(op.reshape(rows, [places, 3])), total])
    at = emit(op.add(op.multiply(group, size(count)), box))
    score = emit(op.gather_elements(emit(op.reshape(scores, [images, places])), at, 1))
    return relax.Tuple([emit(op.stack([row(group), row(box)], axis=2)), row(score), total])
