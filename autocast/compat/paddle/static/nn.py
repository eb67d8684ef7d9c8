"""`paddle.static.nn`: the one way to put layers into a program."""

from __future__ import annotations

import torch

from autocast.compat.names import named
from autocast.compat.paddle.static.program import Variable

__all__ = ["torch_module"]


def torch_module(module: torch.nn.Module, *inputs: Variable) -> Variable | tuple[Variable, ...]:
    """The outputs of a torch module in the program of its inputs; what stands here in place of Paddle's layers.

    The module is imported as it stands: `module.train()` for a program that is trained, `module.eval()` for one that is
    tested. Programs of one module share its parameters, as Paddle's do whose variables have the same names.
    """
    return inputs[0].program.add_module(module, inputs)


__getattr__ = named(__name__, __all__, "layers are those of a torch module: static.nn.torch_module(module, *inputs)")
