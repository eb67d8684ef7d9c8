"""Operators that no gradient passes through: logic, backward operators, run time, and foreign code."""

from __future__ import annotations

from autocast.operators import Kind, named
from autocast.training.gradients.registry import gradient, not_differentiable, zero_gradient

_SECOND = "part of a backward pass: second derivatives are not supported"
_FOREIGN = "foreign code; write the computation with Relax operators"
_COLLECTIVE = "talks to other devices; a training step runs on one"
_MEANS = "averages gradients and what was counted: differentiate the model before"
_RUNTIME = "made by lowering; differentiate the model before it is lowered"


def _names(prefix: str, text: str) -> list[str]:
    return [f"relax.{prefix}{name}" for name in text.split()]


LOGIC = tuple(
    zero_gradient(name, why="answers with booleans or integers") for name in sorted(named(Kind.COMPARISON, Kind.LOGIC))
)

MARKERS = (
    zero_gradient("relax.grad.no_grad", why="stops the gradient: that is what it is for"),
    gradient("relax.grad.start_checkpoint", lambda b: [b.adjoint], why="the identity"),
    gradient("relax.grad.end_checkpoint", lambda b: [b.adjoint], why="the identity"),
)

BACKWARD = tuple(
    not_differentiable(name, why=_SECOND)
    for name in (
        *sorted(named(Kind.GRADIENT, Kind.CONVOLUTION_GRADIENT)),
        *_names("grad.", "gru_backward lstm_backward rnn_backward"),
    )
)

FOREIGN = tuple(
    not_differentiable(name, why=_FOREIGN)
    for name in _names(
        "",
        "call_tir call_tir_inplace call_tir_with_grad call_inplace_packed call_py_func "
        "call_builtin_with_ctx dist.call_tir_local_view vm.call_tir_dyn make_closure invoke_closure "
        "invoke_pure_closure",
    )
)

COLLECTIVE = tuple(
    not_differentiable(name, why=_COLLECTIVE)
    for name in _names(
        "",
        "ccl.allgather ccl.allreduce ccl.broadcast_from_worker0 ccl.scatter_from_worker0 dist.annotate_sharding "
        "dist.redistribute dist.redistribute_replica_to_shard",
    )
)

MEANS = tuple(
    not_differentiable(name, why=_MEANS)
    for name in _names(
        "collective.",
        "all_reduce_start all_reduce_done reduce_scatter_start reduce_scatter_done share all_gather_start "
        "all_gather_done",
    )
)

RUNTIME = tuple(
    not_differentiable(name, why=_RUNTIME)
    for name in _names(
        "",
        "builtin.alloc_tensor builtin.stop_lift_params memory.alloc_storage memory.alloc_tensor "
        "memory.ensure_zero_offset memory.kill_storage memory.kill_tensor memory.view vm.alloc_storage vm.alloc_tensor "
        "vm.kill_object "
        "inspect.tensor_byte_offset inspect.tensor_dtype_bits inspect.tensor_dtype_code inspect.tensor_dtype_lanes "
        "inspect.tensor_elem_offset inspect.tensor_ndim inspect.tensor_shape_i inspect.tensor_stride_i null_value "
        "print assert_op",
    )
)

RULES = (*LOGIC, *MARKERS, *BACKWARD, *FOREIGN, *COLLECTIVE, *MEANS, *RUNTIME)
