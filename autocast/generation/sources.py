"""What an encoder reads that is no tokens: features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from autocast.errors import ImportModelError


def _picture(config: Any) -> tuple[int, ...]:
    size = config.image_size
    return (config.num_channels, *(size if isinstance(size, list | tuple) else (size, size)))


#: By a configuration's type, the shape of one encoder's input without its batch. torch reads for encoders that take any
#: length of features, and reduce the mask beside them by rules of their own: they are not here.
FEATURES: dict[str, Callable[[Any], tuple[int, ...]]] = {
    "vision-encoder-decoder": lambda config: _picture(config.encoder),  # (channels, height, width)
    "whisper": lambda config: (config.num_mel_bins, 2 * config.max_source_positions),  # (mels, frames)
}


def features_of(model: PreTrainedModel) -> tuple[int, ...] | None:
    """The shape of what the model's encoder reads, () where there are many; None where the model reads tokens.

    Raises
    ------
    ImportModelError
        The model generates no text, or reads something else.
    """
    if model.can_generate() and model.main_input_name == "input_ids":
        return None
    if not model.can_generate() or not model.config.is_encoder_decoder:
        raise ImportModelError(
            f"Generator: got {type(model).__name__}, which reads {model.main_input_name}; expected a model that reads "
            "tokens and generates text, such as LlamaForCausalLM, or one with an encoder of features, such as Whisper; "
            "import what else there is with autocast.from_torch"
        )
    shape = FEATURES.get(model.config.model_type)
    return () if shape is None else shape(model.config)
