"""Elementwise."""
