"""Which of many boxes that overlap are kept: of each class one after another, by their scores.

Sources: Felzenszwalb, Girshick, McAllester, Ramanan, "Object detection with discriminatively trained part-based
models", 2010; what is compared, and how, is as ONNX's operator NonMaxSuppression says it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from autocast.errors import IllFormedModuleError
from autocast.ir.views import dtype_of, shape_of
from autocast.operators.operator import define


def _result(call: relax.Call) -> relax.TensorType:
    boxes, scores = (shape_of(operand) for operand in call.args[:2])
    if (
        boxes is None
        or scores is None
        or (len(boxes), len(scores), boxes[-1]) != (3, 3, 4)
        or dtype_of(call.args[0]) != dtype_of(call.args[1])
    ):
        given = ", ".join(str(operand.ty) for operand in call.args)
        raise IllFormedModuleError(
            f"relax.vision.suppress: got ({given}), expected boxes of shape (batch, boxes, 4), and scores of (batch, "
            "classes, boxes) and their dtype"
        )
    return relax.TensorType(list(scores), "int64")


def _corners(box: Sequence[tirx.Expr], is_centred: bool) -> tuple[tirx.Expr, ...]:
    """The least and the largest coordinate along each axis: (first, other, first, other)."""
    if is_centred:
        x, y, width, height = box
        return x - width / 2.0, y - height / 2.0, x + width / 2.0, y + height / 2.0
    first, other, last, far = box
    return te.min(first, last), te.min(other, far), te.max(first, last), te.max(other, far)


def _overlap_more(one: tuple[tirx.Expr, ...], other: tuple[tirx.Expr, ...], most: tirx.Expr) -> tirx.Expr:
    """Whether what two boxes share is a larger part of what both cover than `most`; those of no area share nothing."""

    def area(box: tuple[tirx.Expr, ...]) -> tirx.Expr:
        return (box[2] - box[0]) * (box[3] - box[1])

    shared = tuple(te.max(one[at], other[at]) if at < 2 else te.min(one[at], other[at]) for at in range(4))
    covered = area(one) + area(other) - area(shared)
    share = tirx.all(shared[2] > shared[0], shared[3] > shared[1], area(one) > 0.0, area(other) > 0.0, covered > 0.0)
    return tirx.all(share, area(shared) / covered > most)


class _Count:
    """A whole number that a loop changes."""

    def __init__(self, value: tirx.Expr | int) -> None:
        self._buffer = T.buffer_proxy(T.alloc_buffer((1,), "int64", scope="local"))
        self.set(value)

    def set(self, value: tirx.Expr | int) -> None:
        self._buffer[0] = T.cast(value, "int64")

    def __call__(self) -> tirx.Expr:
        return self._buffer[0]


class _Boxes:
    """The numbers of one class's boxes in a row of the result: those that are kept in front, a heap of those that wait
    at the end, the first of the best on top.

    Parameters
    ----------
    row : function
        The place of a number in the result.
    score, overlaps : function
        Of a box, and of two: whether the second goes where the first is kept.
    count : Expr
        How many boxes there are.
    """

    def __init__(
        self,
        buffer: Any,
        group: tuple[tirx.Expr, tirx.Expr],
        score: Callable[[tirx.Expr], tirx.Expr],
        overlaps: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
        count: tirx.Expr,
    ) -> None:
        self.buffer, self.group, self.score, self.overlaps, self.count = buffer, group, score, overlaps, count
        self.kept, self.waiting = _Count(0), _Count(0)

    def place(self, node: tirx.Expr) -> tuple[tirx.Expr, ...]:
        """Where a node of the heap is."""
        return (*self.group, self.count - 1 - node)

    def wait(self, least: tirx.Expr) -> None:
        """Make a heap of all boxes whose scores are above `least`."""
        with T.serial(0, self.count) as number, T.If(self.score(number) > least), T.Then():
            self.buffer[self.place(self.waiting())] = T.cast(number, "int64")
            self.waiting.set(self.waiting() + 1)
        half = tirx.floordiv(self.waiting(), 2)
        with T.serial(0, half) as done:
            self.sink(half - 1 - done)

    def is_before(self, node: tirx.Expr, other: tirx.Expr) -> tirx.Expr:
        """Whether a node's box has a higher score than another's, or the same and a lower number."""
        numbers = [self.buffer[self.place(at)] for at in (node, other)]
        scores = [self.score(number) for number in numbers]
        return tirx.any(scores[0] > scores[1], tirx.all(scores[0] == scores[1], numbers[0] < numbers[1]))

    def sink(self, node: tirx.Expr | int) -> None:
        """Move a node's box down until no child is before it."""
        at, best, held = _Count(node), _Count(-1), _Count(0)
        with T.While(best() != at()):
            best.set(at())
            for side in (1, 2):
                child = 2 * at() + side
                with T.If(child < self.waiting()), T.Then(), T.If(self.is_before(child, best())), T.Then():
                    best.set(child)
            with T.If(best() != at()), T.Then():
                held.set(self.buffer[self.place(at())])
                self.buffer[self.place(at())] = self.buffer[self.place(best())]
                self.buffer[self.place(best())] = held()
                held.set(at())
                at.set(best())
                best.set(held())

    def take(self) -> None:
        """Keep the box on top, if no other that is kept overlaps it."""
        top, place = _Count(self.buffer[self.place(tirx.const(0, "int64"))]), _Count(0)
        self.waiting.set(self.waiting() - 1)
        self.buffer[self.place(tirx.const(0, "int64"))] = self.buffer[self.place(self.waiting())]
        self.sink(0)
        with T.While(place() < self.kept()), T.If(self.overlaps(self.buffer[(*self.group, place())], top())):
            with T.Then():
                place.set(self.count)
            with T.Else():
                place.set(place() + 1)
        with T.If(place() == self.kept()), T.Then():
            self.buffer[(*self.group, self.kept())] = top()
            self.kept.set(self.kept() + 1)


def _suppress(
    boxes: te.Tensor, scores: te.Tensor, most: te.Tensor, overlap: te.Tensor, least: te.Tensor, centred: int = 0
) -> te.Tensor:
    """Each class of each image by itself."""
    batch, classes, count = scores.shape

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> tirx.Stmt:
        with IRBuilder() as builder:
            box, scored, limit, share, bound = map(T.buffer_proxy, ins)
            result = T.buffer_proxy(outs[0])
            with T.parallel(0, batch * classes) as number:
                group = image, _ = number // classes, number % classes

                def corners(number: tirx.Expr) -> tuple[tirx.Expr, ...]:
                    return _corners([box[image, number, edge] for edge in range(4)], bool(centred))

                def overlaps(one: tirx.Expr, other: tirx.Expr) -> tirx.Expr:
                    return _overlap_more(corners(one), corners(other), share[0])

                found = _Boxes(result, group, lambda number: scored[(*group, number)], overlaps, count)
                found.wait(bound[0])
                with T.While(tirx.all(found.waiting() > 0, found.kept() < limit[0])):
                    found.take()
                with T.serial(0, count - found.kept()) as rest:
                    result[(*group, found.kept() + rest)] = T.int64(-1)
            return builder.get()

    return te.extern([scores.shape], [boxes, scores, most, overlap, least], body, name="suppress", dtype="int64")


suppress = define(
    "relax.vision.suppress",
    "boxes scores most overlap least",
    result=_result,
    compute=_suppress,
    summary="The numbers of the boxes (batch, boxes, 4) that each class keeps, by their scores (batch, classes, boxes),"
    " then -1: at most `most` of scores above `least`, without those that share more than `overlap` with one before. "
    "Boxes are two opposite corners; with the attribute centred=1 centre, width and height",
)
