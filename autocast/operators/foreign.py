"""Operators that are not part of a model: calls of other code, closures, memory, workers, marks."""

from __future__ import annotations

from autocast.operators.row import Kind, rows

ROWS = rows(
    Kind.FOREIGN,
    """
    assert_op builtin.alloc_tensor builtin.stop_lift_params call_builtin_with_ctx call_dps_packed
    call_inplace_packed call_pure_packed call_py_func call_tir call_tir_inplace call_tir_with_grad ccl.allgather
    ccl.allreduce ccl.broadcast_from_worker0 ccl.scatter_from_worker0 collective.all_gather_done
    collective.all_gather_start collective.all_reduce_done collective.all_reduce_start collective.reduce_scatter_done
    collective.reduce_scatter_start collective.share dist.annotate_sharding dist.call_tir_local_view dist.redistribute
    dist.redistribute_replica_to_shard grad.end_checkpoint grad.no_grad grad.start_checkpoint
    inspect.tensor_byte_offset inspect.tensor_dtype_bits inspect.tensor_dtype_code inspect.tensor_dtype_lanes
    inspect.tensor_elem_offset inspect.tensor_ndim inspect.tensor_shape_i inspect.tensor_stride_i invoke_closure
    invoke_pure_closure make_closure memory.alloc_storage memory.alloc_tensor memory.ensure_zero_offset
    memory.kill_storage memory.kill_tensor memory.view print vm.alloc_storage vm.alloc_tensor vm.call_tir_dyn
    vm.kill_object
    """,
)
