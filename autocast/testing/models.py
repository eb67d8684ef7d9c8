"""Transformers from a Hugging Face configuration, with random weights."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch

from autocast import ir
from autocast.errors import InputError, UnsupportedError
from autocast.frontend import from_torch
from autocast.model import Model


def get_transformer_model_by_config(
    config: Any, batch_size: int = 8, seq_length: int = 128, dtype: str = "float32", *, seed: int = 0
) -> tuple[Model, tuple[int, ...]]:
    """Build a language model with random weights and import it.

    Parameters
    ----------
    config : transformers.PretrainedConfig
        Decides the architecture: the class that `config.architectures` names, else a masked-LM model where
        transformers has one for it, else a causal one. It is not changed.
    batch_size, seq_length : int
        The model takes token indices, int64, of this shape.
    dtype : str
        Of the parameters and the computation: "float32", "bfloat16" or "float16".
    seed : int
        Of the weights; torch's global generator is left as it was.

    Returns
    -------
    model : Model
    shape : tuple of int
        The shape of its first output: (batch_size, seq_length, vocabulary) for a language model.
    """
    if dtype not in ir.FLOATS:
        raise InputError(f"get_transformer_model_by_config: dtype is {dtype!r}, expected one of {', '.join(ir.FLOATS)}")
    module = build_transformer(config, seed).to(getattr(torch, dtype))
    model = from_torch(module, (torch.zeros((batch_size, seq_length), dtype=torch.int64),))
    result = model.main.ret_ty
    first = result.fields[0] if hasattr(result, "fields") else result
    return model, tuple(int(size) for size in first.shape.values)


def build_transformer(config: Any, seed: int = 0) -> torch.nn.Module:
    """The torch module of `get_transformer_model_by_config`: float32, in evaluation mode, without a cache."""
    import transformers

    config = deepcopy(config)
    config.use_cache = False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _module_class(transformers, config)(config)
    return module.eval()


def _module_class(transformers: Any, config: Any) -> Any:
    for name in config.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    for family in (transformers.AutoModelForMaskedLM, transformers.AutoModelForCausalLM):
        if type(config) in family._model_mapping:
            return family._model_mapping[type(config)]
    raise UnsupportedError(
        f"get_transformer_model_by_config: {type(config).__name__} has no masked or causal language model; build the "
        "module yourself and call autocast.from_torch"
    )
