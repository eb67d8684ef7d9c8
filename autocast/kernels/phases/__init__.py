"""Rewrites of the module before, between and after the choice of kernels."""
