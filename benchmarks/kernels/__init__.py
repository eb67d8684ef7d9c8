"""Kernels beside those of other libraries, family by family."""
