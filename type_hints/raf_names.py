"""What RAF's operators are called in Relax, and why some of them are none.

RAF's names are those of the casting rules in its repository at github.com/awslabs/raf. Those that Relax has too, such
as `conv2d`, are not here.
"""

from __future__ import annotations

#: RAF's name -> Relax's; gradients too, where one operator computes them.
RAF_NAMES = {
    theirs: f"relax.{ours}"
    for ours, names in {
        "matmul": "dense matmul_nt matmul_tn matmul_tt batch_matmul batch_matmul_nt batch_matmul_tn batch_matmul_tt",
        "nn.conv2d": "conv2d_transpose_dx",
        "nn.conv2d_transpose": "conv2d_dx",
        "grad.conv2d_weight_backward": "conv2d_dw conv2d_transpose_dw",
        "grad.max_pool2d_backward": "max_pool2d_dx",
        "grad.avg_pool2d_backward": "avg_pool2d_dx",
        "nn.batch_norm": "batch_norm_infer batch_norm_train",
        "grad.batch_norm_backward": "batch_norm_train_dxwb",
        "nn.layer_norm": "layer_norm_train",
        "grad.layer_norm_backward": "layer_norm_dx layer_norm_train_dx",
        "grad.softmax_backward": "softmax_dx",
        "grad.log_softmax_backward": "log_softmax_dx",
        "grad.gelu_backward": "gelu_dx",
        "grad.relu_backward": "relu_dx",
        "grad.sigmoid_backward": "sigmoid_dx",
        "grad.tanh_backward": "tanh_dx",
        "grad.cross_entropy_backward": "cross_entropy_dpred",
        "grad.nll_loss_backward": "nll_loss_dpred",
        "nn.seeded_dropout": "_contrib_dropout _contrib_dropout_dx",
        "permute_dims": "transpose transpose_dx swap_axis",
        "reshape": "reshape_like",
        "broadcast_to": "broadcast_to_like sum_dx mean_dx",
        "concat": "concatenate",
        "strided_slice": "concatenate_dx",
        "nn.pad": "strided_slice_dx",
        "flip": "reverse",
        "sum": "repeat_dx",
        "meshgrid": "mesh_grid",
        "astype": "cast cast_like",
        "take": "embedding",
        "grad.take_backward": "take_dx embedding_dx",
        "gather_elements": "gather",
        "scatter_elements": "scatter scatter_dx gather_dx",
        "scatter_nd": "gather_nd_dx",
        "index_tensor": "adv_index",
        "index_put": "adv_index_dx",
        "nonzero": "argwhere",
        "divide": "reciprocal",
        "shape_of": "shape",
        "shape_to_tensor": "shape_as_tensor",
        "size": "ndarray_size numel",
        "ccl.allreduce": "_allreduce",
        "ccl.allgather": "_allgather",
    }.items()
    for theirs in names.split()
}

_LABELS = "labels are class indices here, and nothing is differentiated by them"
_NOISE = "random numbers are made inside of nn.seeded_dropout here: integers, which no rule casts"
_SMOOTH_L1 = "it is computed by abs, where, square and mean here; name these"

#: RAF's name -> why no operator here is the same.
WITHOUT_OPERATOR = {
    "_reduce_scatter": "Relax has ccl.allreduce and ccl.allgather, and nothing that does half of either",
    "adaptive_avg_pool2d_dx": "it is computed by broadcast_to or matmul here; name these",
    "adaptive_max_pool2d": "Relax has no adaptive pooling that takes the largest; nn.max_pool2d has fixed windows",
    "adaptive_max_pool2d_dx": "Relax has no adaptive pooling that takes the largest, so it has no gradient either",
    "all": "it is computed by min of a bool tensor here, which no casting rule concerns",
    "any": "it is computed by max of a bool tensor here, which no casting rule concerns",
    "clip_dx": "it is computed by where here; name that",
    "copy": "models here are values, so nothing is copied and there is nothing to cast",
    "cross_entropy_dtrue": _LABELS,
    "nll_loss_dtrue": _LABELS,
    "erf_dx": "it is computed by exp, square and multiply here; name these",
    "get_kept_dims": "sizes are part of types here, so that no operator computes them",
    "get_reduce_axis": "axes are attributes here, so that no operator computes them",
    "lans": "the update of an optimizer is several operators here, in a private function that is always float32",
    "sgd": "the update of an optimizer is several operators here, in a private function that is always float32",
    "log2": "it is computed by log and multiply here; name these",
    "prod_dx": "it is computed by multiply and where here; name these",
    "roi_align_dx": "regions of interest are not differentiated here",
    "sequence_mask": "it is computed by less and where here; name these",
    "smooth_l1_loss": _SMOOTH_L1,
    "smooth_l1_loss_dpred": _SMOOTH_L1,
    "smooth_l1_loss_dtrue": _LABELS.replace("class indices", "data"),
    "sqrt_dx": "it is computed by multiply and divide here; name these",
    "threefry_generate": _NOISE,
    "threefry_split": _NOISE,
    "upper_bound.argwhere": "a result whose size depends on data has that size here and no upper bound: nonzero",
}
