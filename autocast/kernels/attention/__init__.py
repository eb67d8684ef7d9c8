"""Attention over heads."""
