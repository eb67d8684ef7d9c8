"""Reductions over axes that are not the last ones or over all of them, and rows added to those of a table."""
