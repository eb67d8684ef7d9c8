"""How many keys are seen at all, where a mask says: those of a cache that nothing was written to yet are not read."""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from autocast.kernels.extents import Extent, i64
from autocast.kernels.specs.attention import Attention, OperandView, Step

#: The number of columns up to the last that is true in any row, looked for from the end, eight at a time.
SEEN_IR = """
define linkonce_odr i64 @autocast_seen(ptr %mask, i64 %rows, i64 %stride, i64 %columns) noinline {
entry:
  br label %row
row:
  %left = phi i64 [ %rows, %entry ], [ %number, %known ]
  %seen = phi i64 [ 0, %entry ], [ %one, %known ]
  %more = icmp sgt i64 %left, 0
  br i1 %more, label %begin, label %done
begin:
  %number = sub i64 %left, 1
  %skipped = mul i64 %number, %stride
  %start = getelementptr i8, ptr %mask, i64 %skipped
  br label %eights
eights:
  %end = phi i64 [ %columns, %begin ], [ %before, %all_false ]
  %before = sub i64 %end, 8
  %fits = icmp sge i64 %before, %seen
  br i1 %fits, label %eight, label %ones
eight:
  %at_eight = getelementptr i8, ptr %start, i64 %before
  %values = load i64, ptr %at_eight, align 1
  %none = icmp eq i64 %values, 0
  br i1 %none, label %all_false, label %ones
all_false:
  br label %eights
ones:
  %one = phi i64 [ %end, %eights ], [ %end, %eight ], [ %last, %false ]
  %unknown = icmp sgt i64 %one, %seen
  br i1 %unknown, label %look, label %known
look:
  %last = sub i64 %one, 1
  %at_one = getelementptr i8, ptr %start, i64 %last
  %value = load i8, ptr %at_one
  %hidden = icmp eq i8 %value, 0
  br i1 %hidden, label %false, label %known
false:
  br label %ones
known:
  br label %row
done:
  ret i64 %seen
}
"""


def hiding(spec: Attention, step: Step) -> OperandView | None:
    """The mask of a step where keys count for nothing if it is false, or None."""
    view = step.view
    if view is None or step.kind != "keep" or step.value != float("-inf") or view.columns != 1:
        return None
    return view if spec.arguments[view.argument][1] == "bool" else None


def seen_keys(mask: tirx.Buffer, start: tirx.Expr, rows: Extent, stride: Extent, keys: Extent) -> tirx.Expr:
    """How many of `keys` are at most seen by `rows` rows of a mask that begins at element `start`."""
    arguments = (i64(rows), i64(stride), i64(keys))
    return T.bind(tirx.call_extern("int64", "autocast_seen", T.address_of(mask[start]), *arguments))
