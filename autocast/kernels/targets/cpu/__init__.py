"""Kernels for the vector units of x86 and ARM processors."""
