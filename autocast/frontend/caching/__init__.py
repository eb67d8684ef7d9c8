"""Imports on disk, by what they read of a module."""
