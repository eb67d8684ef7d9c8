"""Operators that are not part of a model: run time, memory, foreign calls. What they are given stays as it was."""

from __future__ import annotations

from type_hints.helpers import full, opaque
from type_hints.registry import rule

_FOREIGN = "calls code that was written for these dtypes"
_CLOSURE = "a function value: its body is cast where it is defined"
_COLLECTIVE = "every worker must send the same dtype, which its author chose"
_SUM = "sums over all ranks, each as exact as the gradients that one process would have added up"
_SHARDING = "places a tensor on a mesh of devices"
_MEMORY = "storage is planned after casts are decided"
_BYTES = "looks at the bytes of a tensor: their dtype is part of the result"
_EFFECT = "shows a value to a person, who expects the model's"

RULES = (
    rule("relax.call_tir", opaque(), why=_FOREIGN),
    rule("relax.call_tir_inplace", opaque(), why=_FOREIGN),
    rule("relax.call_tir_with_grad", opaque(), why=_FOREIGN),
    rule("relax.call_dps_packed", opaque(), why=_FOREIGN),
    rule("relax.call_pure_packed", opaque(), why=_FOREIGN),
    rule("relax.call_inplace_packed", opaque(), why=_FOREIGN),
    rule("relax.call_py_func", opaque(), why=_FOREIGN),
    rule("relax.call_builtin_with_ctx", opaque(), why=_FOREIGN),
    rule("relax.dist.call_tir_local_view", opaque(), why=_FOREIGN),
    rule("relax.vm.call_tir_dyn", opaque(), why=_FOREIGN),
    rule("relax.make_closure", opaque(), why=_CLOSURE),
    rule("relax.invoke_closure", opaque(), why=_CLOSURE),
    rule("relax.invoke_pure_closure", opaque(), why=_CLOSURE),
    rule("relax.ccl.allgather", opaque(), why=_COLLECTIVE),
    rule("relax.ccl.allreduce", opaque(), why=_COLLECTIVE),
    rule("relax.ccl.broadcast_from_worker0", opaque(), why=_COLLECTIVE),
    rule("relax.ccl.scatter_from_worker0", opaque(), why=_COLLECTIVE),
    rule("relax.collective.all_reduce_start", full(1), why=_SUM),
    rule("relax.collective.all_reduce_done", opaque(), why="the buffer is bytes; the means have the author's dtype"),
    rule("relax.collective.reduce_scatter_start", full(1), why=_SUM),
    rule("relax.collective.reduce_scatter_done", opaque(), why="the rows are bytes; the means are float32"),
    rule("relax.collective.share", opaque(), why="a part of a parameter, which is updated in the dtype that it has"),
    rule("relax.collective.all_gather_start", opaque(), why="parameters, and rows of tables, are sent as they are"),
    rule(
        "relax.collective.all_gather_done",
        opaque(),
        why="the rows are bytes; the whole tensors have the author's dtype",
    ),
    rule("relax.dist.annotate_sharding", opaque(), why=_SHARDING),
    rule("relax.dist.redistribute", opaque(), why=_SHARDING),
    rule("relax.dist.redistribute_replica_to_shard", opaque(), why=_SHARDING),
    rule("relax.builtin.alloc_tensor", opaque(), why=_MEMORY),
    rule("relax.builtin.stop_lift_params", opaque(), why="marks where the transformation of parameters ends"),
    rule("relax.memory.alloc_storage", opaque(), why=_MEMORY),
    rule("relax.memory.alloc_tensor", opaque(), why=_MEMORY),
    rule("relax.memory.kill_storage", opaque(), why=_MEMORY),
    rule("relax.memory.kill_tensor", opaque(), why=_MEMORY),
    rule("relax.memory.ensure_zero_offset", opaque(), why=_BYTES),
    rule("relax.memory.view", opaque(), why=_BYTES),
    rule("relax.vm.alloc_storage", opaque(), why=_MEMORY),
    rule("relax.vm.alloc_tensor", opaque(), why=_MEMORY),
    rule("relax.vm.kill_object", opaque(), why=_MEMORY),
    rule("relax.inspect.tensor_byte_offset", opaque(), why=_BYTES),
    rule("relax.inspect.tensor_dtype_bits", opaque(), why=_BYTES),
    rule("relax.inspect.tensor_dtype_code", opaque(), why=_BYTES),
    rule("relax.inspect.tensor_dtype_lanes", opaque(), why=_BYTES),
    rule("relax.inspect.tensor_elem_offset", opaque(), why=_BYTES),
    rule("relax.inspect.tensor_ndim", opaque(), why=_BYTES),
    rule("relax.inspect.tensor_shape_i", opaque(), why=_BYTES),
    rule("relax.inspect.tensor_stride_i", opaque(), why=_BYTES),
    rule("relax.null_value", opaque(), why="stands for an absent object"),
    rule("relax.print", opaque(), why=_EFFECT),
    rule("relax.assert_op", opaque(), why=_EFFECT),
)
