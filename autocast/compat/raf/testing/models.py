"""Language models, and models that train these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autocast import testing
from autocast.compat.raf.handle import FrameworkModel, model_of
from autocast.model import Model


def get_transformer_model(
    name: str, batch_size: int = 8, seq_length: int = 128, dtype: str = "float32"
) -> tuple[FrameworkModel, tuple[int, ...]]:
    """The model of a Hugging Face configuration's name or folder, with random weights; and its result's shape."""
    import transformers

    return get_transformer_model_by_config(transformers.AutoConfig.from_pretrained(name), batch_size, seq_length, dtype)


def get_transformer_model_by_config(
    config: Any, batch_size: int = 8, seq_length: int = 128, dtype: str = "float32"
) -> tuple[FrameworkModel, tuple[int, ...]]:
    """The model of a Hugging Face configuration, with random weights and without dropout; and its result's shape."""
    model, shape = testing.get_transformer_model_by_config(config, batch_size, seq_length, dtype)
    return FrameworkModel(model), shape


def append_loss_n_optimizer(
    model: FrameworkModel | Model, args: Any, out_shape: Sequence[int], y_true: Any, optimizer: str = "sgd"
) -> FrameworkModel:
    """The model that makes a step of `optimizer` for the cross-entropy of its logits each time it is called.

    It takes (dy, inputs..., labels) and gives the loss. "sgd" and "lans" are RAF's; "adam", "adamw" and "lamb" are here
    besides. The errors are those of `autocast.testing.append_loss_n_optimizer`.
    """
    return FrameworkModel(testing.append_loss_n_optimizer(model_of(model), args, out_shape, y_true, optimizer))
