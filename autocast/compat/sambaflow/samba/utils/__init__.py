"""`samba.utils`: the command line of a model's file."""

from __future__ import annotations

from autocast.compat.names import named
from autocast.compat.sambaflow.samba.utils import argparser

__all__ = ["argparser"]

__getattr__ = named(__name__, __all__)
