"""Special functions: torch computes those of 16 bits in float32 as well, and rounds once."""

from __future__ import annotations

import torch

from autocast.torch_target.asked import Asked, Row, Value


def _frexp(asked: Asked) -> Value:
    both = torch.frexp(asked.args[0])
    return both[0], both[1]


def _of_torch(name: str) -> Row:
    return lambda asked: getattr(torch.special, name)(*asked.args)


ROWS: dict[str, Row] = {
    **{
        f"special.{name}": _of_torch(name)
        for name in (
            *("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "digamma", "erfc", "erfcx", "erfinv", "i0", "i0e"),
            *("i1", "i1e", "log_ndtr", "ndtri", "zeta"),
        )
    },
    "special.frexp": _frexp,
    "special.lgamma": lambda asked: torch.lgamma(asked.args[0]),
    "special.nextafter": lambda asked: torch.nextafter(*asked.args),
    "special.polygamma": lambda asked: torch.special.polygamma(int(asked.attrs["n"]), asked.args[0]),
    "special.signbit": lambda asked: torch.signbit(asked.args[0]),
}
