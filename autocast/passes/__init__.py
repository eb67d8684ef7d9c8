"""Passes over Relax modules: AutoCast and what it is made of."""
