"""Kernels beside those of other libraries, family by family."""

import torch


def reorders(dtype: str) -> bool:
    """Whether oneDNN packs weights of this dtype here: bfloat16 asks for AVX-512."""
    return dtype != "bfloat16" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
