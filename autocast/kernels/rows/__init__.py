"""Kernels that work on rows: softmax, normalizations, reductions, with elementwise neighbours on both sides."""
