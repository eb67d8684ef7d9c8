"""Paddle's static graphs, as far as its mixed precision is about them: `import autocast.compat.paddle as paddle`.

The layers of a program are those of a torch module (`static.nn.torch_module`); the rest keeps Paddle's names. Source:
PaddlePaddle's pull request 29544, and its documentation of `paddle.static`.
"""

from __future__ import annotations

from autocast.compat.names import named
from autocast.compat.paddle import nn, optimizer, static, utils
from autocast.compat.paddle.places import CPUPlace, CUDAPlace

__all__ = ["CPUPlace", "CUDAPlace", "enable_static", "nn", "optimizer", "static", "utils"]


def enable_static() -> None:
    """Static graphs are all that there is here."""


__getattr__ = named(
    __name__, __all__, instead={"amp": "that of dynamic graphs is torch's; that of static ones is paddle.static.amp"}
)
