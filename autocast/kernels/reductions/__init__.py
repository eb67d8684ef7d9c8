"""Reductions over axes that are not the last ones, and over all of them."""
