"""How torch's parameter names become the names of Relax variables."""

from __future__ import annotations


def variable_name(name: str) -> str:
    """A Relax variable's name for a parameter's: `encoder.layer.0.weight` becomes `encoder_layer_0_weight`."""
    text = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return text if text[:1].isalpha() or text[:1] == "_" else f"p_{text}"
