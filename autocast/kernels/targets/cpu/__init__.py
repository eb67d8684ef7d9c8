"""Kernels for the vector and matrix units of x86 and ARM processors."""
