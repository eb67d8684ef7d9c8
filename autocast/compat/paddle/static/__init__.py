"""`paddle.static`: programs, their inputs, the executor that runs them, files, and mixed precision (`amp`)."""

from __future__ import annotations

from autocast.compat.names import named
from autocast.compat.paddle.static import amp, nn
from autocast.compat.paddle.static.executor import Executor
from autocast.compat.paddle.static.inference import load_inference_model, save_inference_model
from autocast.compat.paddle.static.program import (
    Program,
    Variable,
    data,
    default_main_program,
    default_startup_program,
    program_guard,
)

__all__ = [
    "Executor",
    "Program",
    "Variable",
    "amp",
    "data",
    "default_main_program",
    "default_startup_program",
    "load_inference_model",
    "nn",
    "program_guard",
    "save_inference_model",
]

__getattr__ = named(__name__, __all__)
