"""transformers' architectures from configurations made small, with random weights, and inputs that they take."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto import configuration_auto, modeling_auto

#: What makes a configuration small, under whichever of these names it has it.
_SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "hidden_dim", "model_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers", "depth"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "moe_intermediate_size"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "feed_forward_hidden_size"), 64),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "num_experts_per_token"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "kv_channels", "attention_head_size"), 8),
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "image_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "shared_expert_intermediate_size": 64,
    "embedding_size": 32,
    "rotary_dim": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "num_queries": 20,
    "n_positions": 64,
    "n_ctx": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

#: The same with heads, of attention and of state spaces, that are as wide as they are.
_WIDE_HEADS = {name: size for name, size in _SMALL.items() if name != "head_dim" and not name.startswith("mamba")}

#: Two layers of 32 features.
_TINY: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
}

#: The numbers of architectures in which more must fit each other, by name.
_FITTING: dict[str, dict[str, Any]] = {
    "esm": {**_TINY, "pad_token_id": 1, "mask_token_id": 32},
    "funnel": {
        **{"block_sizes": [1, 1], "block_repeats": [1, 1]},
        **{"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64, "vocab_size": 99},
        "architectures": ["FunnelModel"],
    },
    "gemma4_text": {
        **_TINY,
        **{"head_dim": 8, "vocab_size_per_layer_input": 99, "hidden_size_per_layer_input": 8},
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "lfm2_moe": {
        **_TINY,
        **{"moe_intermediate_size": 64, "num_dense_layers": 1, "num_experts": 4, "num_experts_per_tok": 2},
        "layer_types": ["conv", "full_attention"],
    },
    "mamba2": {
        **{"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8},
        **{"state_size": 16, "n_groups": 2, "chunk_size": 4},
    },
    "qwen2_vl_text": {**_TINY, "hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1},
    "whisper": {
        **{"vocab_size": 99, "d_model": 32, "num_mel_bins": 16, "encoder_layers": 2, "decoder_layers": 2},
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64),
        **dict.fromkeys(("max_source_positions", "max_target_positions"), 32),
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0),
    },
    "zamba2": {
        **_TINY,
        **{"num_hidden_layers": 4, "n_mamba_heads": 4, "mamba_d_state": 16, "chunk_size": 4, "adapter_rank": 8},
        "num_key_value_heads": 4,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    },
}

#: What makes a configuration short: few layers, of as many features as they have.
_SHORT = {name: size for name, size in _SMALL.items() if "layer" in name or name in ("depth", "vocab_size")}

#: What some configurations leave to who makes them.
_LEFT_OPEN = ("vocab_size", "head_dim", "num_experts_per_tok")

#: Parameters of a model that is compiled in a minute.
_LARGEST = 100_000_000


def architectures(*parts: str) -> Iterator[str]:
    """The model types that AutoModel knows and whose name has one of `parts` in it, if there are any."""
    for name in modeling_auto.MODEL_MAPPING_NAMES:
        if name in configuration_auto.CONFIG_MAPPING_NAMES and (not parts or any(part in name for part in parts)):
            yield name


def small_models(
    name: str, kind: Any = transformers.AutoModel, others: Mapping[str, Any] = MappingProxyType({"use_cache": False})
) -> Iterator[Callable[[], nn.Module]]:
    """Ways to make the architecture with two layers and few features, seeded, in eval mode; some of which may fail.

    A configuration that is changed keeps what followed from its numbers; one that is made of small ones does not. Heads
    of the usual size, or few layers of that, are left to architectures whose sizes must fit each other. `kind` is the
    class of transformers that makes models; where a configuration has one of `others`, it is set. What `_FITTING` says
    of an architecture comes first.
    """
    if name in _FITTING:
        yield lambda: _model(_fitting(name, others), kind)
    yield lambda: _model(_changed(name, others), kind)
    for sizes in (_SMALL, _WIDE_HEADS, _SHORT):
        yield lambda sizes=sizes: _model(_made_small(name, sizes, others), kind)  # type: ignore[misc]


def _fitting(name: str, others: Mapping[str, Any]) -> Any:
    config = transformers.AutoConfig.for_model(name, **_FITTING[name])
    for attribute, value in others.items():
        if _attribute(config, attribute):
            _set(config, attribute, value)
    return config


def _model(config: Any, kind: Any) -> nn.Module:
    torch.manual_seed(0)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in kind.from_config(config).parameters())
    if size > _LARGEST:
        raise ValueError(f"it has {size:,} parameters, however small its configuration")
    try:
        model: nn.Module = kind.from_config(config, attn_implementation="sdpa")
    except ValueError:  # it has none
        model = kind.from_config(config, attn_implementation="eager")
    return varied(model)


def varied(model: nn.Module) -> nn.Module:
    """The model in eval mode, with noise on parameters whose numbers are all the same.

    Routers of zeros choose experts by ties, which torch leaves open, and scales of zero hide what they scale.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.numel() > 1 and bool((parameter == parameter.max()).all()):
                parameter += 0.02 * torch.randn_like(parameter)
    return model.eval()


def _made_small(name: str, sizes: dict[str, Any], others: Mapping[str, Any]) -> Any:
    return transformers.AutoConfig.for_model(name, **_arguments(transformers.AutoConfig.for_model(name), sizes, others))


def _arguments(config: Any, sizes: dict[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a configuration like `config` with small numbers."""
    result: dict[str, Any] = {}
    for attribute, value in sizes.items():
        old = _attribute(config, attribute)
        if isinstance(old, int) and not isinstance(old, bool) and old > 0:
            result[attribute] = min(old, value)
        elif attribute in _LEFT_OPEN and vars(config).get(attribute, 0) is None:
            result[attribute] = value
    if "num_key_value_heads" in result and _attribute(config, "kv_lora_rank"):  # latent attention has heads of one kind
        result["num_key_value_heads"] = result["num_attention_heads"]
    rotation = _attribute(config, "rope_parameters")
    if isinstance(rotation, dict) and "mrope_section" in rotation and "head_dim" in result:
        result["head_dim"] = int(2 * sum(rotation["mrope_section"]) / rotation.get("partial_rotary_factor", 1.0))
    result |= {attribute: value for attribute, value in others.items() if _attribute(config, attribute)}
    for attribute, part in vars(config).items():
        if isinstance(part, transformers.PreTrainedConfig):
            kind = {"model_type": part.model_type} if part.model_type else {}
            result[attribute] = kind | _arguments(part, sizes, others)
    return result


def _attribute(config: Any, name: str) -> Any:
    """None where a configuration has no such attribute, or not one for all layers."""
    try:
        return getattr(config, name, None)
    except Exception:  # of the kinds that the authors of configurations thought of
        return None


def _changed(name: str, others: Mapping[str, Any]) -> Any:
    config = transformers.AutoConfig.for_model(name)
    _shrink(config, others)
    return config


def _shrink(config: Any, others: Mapping[str, Any]) -> None:
    """Make a configuration small, and those in it; what another attribute follows from is left alone."""
    for attribute, value in _SMALL.items():
        old = _attribute(config, attribute)
        if isinstance(old, int) and not isinstance(old, bool):
            _set(config, attribute, min(old, value) if old > 0 else old)
    layers = _attribute(config, "num_hidden_layers")
    for attribute in ("layer_types", "mlp_layer_types", "layers_block_type"):
        kinds = _attribute(config, attribute)
        if isinstance(kinds, list) and isinstance(layers, int):
            _set(config, attribute, (sorted(set(kinds), key=kinds.index) * layers)[:layers])
    for attribute, value in others.items():
        if _attribute(config, attribute):
            _set(config, attribute, value)
    for part in list(vars(config).values()):
        if isinstance(part, transformers.PreTrainedConfig):
            _shrink(part, others)


def _set(config: Any, attribute: str, value: Any) -> None:
    with contextlib.suppress(AttributeError, NotImplementedError, TypeError, ValueError):
        setattr(config, attribute, value)


def inputs_of(model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Inputs by name, two of a batch, of which the model's forward may take some: ids, pictures, films, sounds."""
    torch.manual_seed(1)
    config = model.config
    takes = inspect.signature(model.forward).parameters
    inner = [config, *(part for part in vars(config).values() if isinstance(part, transformers.PreTrainedConfig))]

    def number(*names: str, default: int) -> int:
        found = (getattr(part, name, None) for name in names for part in inner)
        return next((value for value in found if isinstance(value, int) and value > 0), default)

    texts, sizes = {}, next((part.image_size for part in inner if getattr(part, "image_size", None)), 64)
    vocabulary = number("vocab_size", default=99)
    if "input_ids" in takes:
        texts["input_ids"] = torch.randint(3, vocabulary, (2, 8))
        yield texts
        yield texts | {"decoder_input_ids": torch.randint(3, vocabulary, (2, 6))}
    if "pixel_values" in takes:
        height, width = sizes if isinstance(sizes, list | tuple) else (sizes, sizes)
        pictures = {"pixel_values": torch.randn(2, number("num_channels", default=3), height, width)}
        yield texts | pictures
        yield pictures
        yield {"pixel_values": torch.randn(2, number("num_frames", default=2), 3, height, width)}
    if "pixel_values_videos" in takes:
        side, frames = number("crop_size", "image_size", default=64), number("frames_per_clip", "num_frames", default=2)
        yield texts | {"pixel_values_videos": torch.randn(2, frames, 3, side, side)}
        yield {"pixel_values_videos": torch.randn(2, frames, 3, side, side)}
    if "bbox" in takes:
        corners = torch.randint(0, 500, (2, 8, 2))
        yield texts | {"bbox": torch.cat([corners, corners + torch.randint(1, 500, (2, 8, 2))], dim=2)}
    if "past_values" in takes:
        length, channels = (
            number("context_length", "prediction_length", default=64),
            number("num_input_channels", default=1),
        )
        yield {"past_values": torch.randn(2, length, channels)}
    if "input_values" in takes:
        yield {"input_values": torch.randn(2, 4000)}
        yield {"input_values": torch.randn(2, 1, 4000)}
        yield {"input_values": torch.randn(2, number("max_length", default=64), number("num_mel_bins", default=80))}
    if "input_features" in takes:
        length = 2 * number("max_source_positions", default=64)
        bands = number("feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel", default=80)
        said = {"decoder_input_ids": torch.randint(3, vocabulary, (2, 6))} if "decoder_input_ids" in takes else {}
        for shape in ((2, bands, length), (2, 64, bands)):
            yield {"input_features": torch.randn(shape)}
            yield {"input_features": torch.randn(shape)} | said
