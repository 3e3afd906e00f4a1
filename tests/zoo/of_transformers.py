"""Small random models of every architecture of `transformers` that can be built from its configuration.

A configuration's numbers are made small by their names, in its parts, too; the arguments are what the model's class asks for
by name. Architectures that do not fit this have entries in `_SPECIAL`.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch

from zoo.measure import Case

#: What each number of a configuration becomes, by name.
_SMALL: dict[str, Any] = {
    **dict.fromkeys("hidden_size d_model n_embd dim embed_dim hidden_dim d_embed embedding_size projection_dim".split(), 32),
    **dict.fromkeys("decoder_hidden_size fpn_hidden_size mask_feature_size feature_size rnn_hidden_size".split(), 32),
    **dict.fromkeys("num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers depth".split(), 2),
    **dict.fromkeys("num_encoder_layers num_decoder_layers num_blocks decoder_num_hidden_layers".split(), 2),
    **dict.fromkeys("num_attention_heads n_head num_heads n_heads encoder_attention_heads attention_heads".split(), 4),
    **dict.fromkeys("decoder_num_attention_heads decoder_attention_heads".split(), 4),
    "num_key_value_heads": 2, "head_dim": 8, "kv_channels": 8,
    **dict.fromkeys("intermediate_size ffn_dim d_ff d_inner encoder_ffn_dim decoder_ffn_dim n_inner".split(), 64),
    **dict.fromkeys("ffn_hidden_size dim_feedforward decoder_intermediate_size mlp_dim moe_intermediate_size".split(), 64),
    "vocab_size": 99, "max_position_embeddings": 64, "n_positions": 64, "max_seq_len": 64, "n_ctx": 64, "type_vocab_size": 2,
    "image_size": 32, "patch_size": 8, "num_channels": 3, "sliding_window": 16, "attention_window": 8,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "num_queries": 8, "num_labels": 3, "state_size": 8, "dropout": 0.1, "num_mel_bins": 16, "max_source_positions": 32,
    "max_target_positions": 32, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "num_buckets": 16, "projection_size": 32, "max_2d_position_embeddings": 64, "first_k_dense_replace": 1,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip

_SPECIAL: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16}, "funnel": {"block_sizes": [1, 1]}, "reformer": {"attn_layers": ["local", "local"],
    "axial_pos_shape": [4, 4], "axial_pos_embds_dim": [16, 16], "local_attn_chunk_length": 4},
    "gptj": {"rotary_dim": 4}, "mamba": {"time_step_rank": 4}, "xlm": {"emb_dim": 32}, "flaubert": {"emb_dim": 32},
    **dict.fromkeys(
        "data2vec-audio hubert sew unispeech unispeech-sat wav2vec2 wavlm".split(),
        {"conv_dim": [16, 16], "conv_kernel": [8, 4], "conv_stride": [4, 2], "num_feat_extract_layers": 2},
    ),
    **dict.fromkeys(
        ("convnext", "convnextv2"),
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "patch_size": 4, "image_size": 64, "num_stages": 4},
    ),
    "resnet": {"embedding_size": 8, "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
    "regnet": {"embedding_size": 8, "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "groups_width": 8},
    **dict.fromkeys(
        ("swin", "swinv2"), {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "patch_size": 2}
    ),
    "segformer": {"hidden_sizes": [8, 16, 16, 32], "num_attention_heads": [1, 2, 2, 4], "depths": [1, 1, 1, 1]},
    "poolformer": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
    "pvt": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
    "mobilenet_v1": {"depth_multiplier": 0.25}, "mobilenet_v2": {"depth_multiplier": 0.25},
    "bit": {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "embedding_size": 16, "num_groups": 4},
}  # fmt: skip

#: What else to try where an architecture does not take these numbers: None leaves a number as it is.
_VARIANTS: list[dict[str, Any]] = [
    {}, {"num_key_value_heads": 4}, {"head_dim": None}, {"head_dim": None, "num_key_value_heads": 4},
    {"mrope_section": [2, 1, 1]}, {"num_hidden_layers": 4, "num_layers": 4}, {"hidden_size": 64, "d_model": 64},
    {"image_size": 64}, {"num_heads": None, "num_attention_heads": None, "embed_dim": None},
]  # fmt: skip

_BATCH, _LENGTH = 2, 16


def names() -> list[str]:
    """Every architecture with a base model."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def build(name: str) -> Case:
    """A model of the architecture `name`, with arguments that it takes.

    Raises:
        Exception: where no such model comes of this, of any kind.
    """
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    errors = []
    special = [_SPECIAL[name]] if name in _SPECIAL else []
    for extra, variant in [*((extra, {}) for extra in special), *(({}, variant) for variant in _VARIANTS)]:
        small = {key: value for key, value in {**_SMALL, **variant}.items() if value is not None}
        try:
            config = _small(CONFIG_MAPPING[name], extra, small)
            _check_size(config)
            torch.manual_seed(0)
            model = AutoModel.from_config(config)
            return Case(model.float(), (), _arguments(model))
        except ImportError:
            raise
        except Exception as error:
            errors.append(error)
    raise errors[0]


def _check_size(config: Any) -> None:
    """Raise ValueError if a configuration is that of a model that is not small."""
    from transformers import AutoModel

    try:
        with torch.device("meta"):
            model = AutoModel.from_config(copy.deepcopy(config))
    except Exception:  # whatever it is, it will be seen again
        return
    if sum(p.numel() for p in model.parameters()) > 60_000_000:
        raise ValueError("the small model is not small")


def _small(config_class: Any, extra: dict[str, Any], small: dict[str, Any]) -> Any:
    """A small configuration of a class: its numbers are given when it is made, since some are checked then."""
    made = config_class(**_settings(config_class(), small) | extra)
    _shorten_ids(made)
    for name, value in extra.items():
        setattr(made, name, value)
    return made


def _settings(config: Any, small: dict[str, Any]) -> dict[str, Any]:
    """What a configuration, and its parts, are to be made with."""
    settings: dict[str, Any] = {}
    layers = next((v for name in _LAYERS if type(v := _value(config, name)) is int), 0)
    for name, value in vars(config).items():
        if name in small and type(value) in (int, float):
            settings[name] = small[name]
        elif name == "per_layer_config" and isinstance(value, dict):
            settings[name] = {key: part for key, part in value.items() if int(key) < small["num_hidden_layers"]}
        elif isinstance(value, list) and layers > 2 and len(value) == layers:
            settings[name] = value[:1] + value[-1:]
        elif hasattr(value, "to_dict") and name in getattr(type(config), "sub_configs", {}):
            settings[name] = {**value.to_dict(), **_settings(value, small)}
    for name, stored in getattr(type(config), "attribute_map", {}).items():
        if name in small and stored not in settings and type(_value(config, stored)) in (int, float):
            settings[stored] = small[name]
    for name in ("rope_scaling", "rope_parameters"):
        rope = _value(config, name)
        if isinstance(rope, dict) and ("mrope_section" in rope or "mrope_section" in small):
            settings[name] = {**rope, "mrope_section": [2, 1, 1]}
    return settings


_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers")


def _value(config: Any, name: str) -> Any:
    """An attribute of a configuration; None where it has none, or one that it does not tell."""
    try:
        return getattr(config, name, None)
    except Exception:
        return None


def _shorten_ids(config: Any) -> None:
    """Let tokens with a meaning be in the small vocabulary."""
    for name, value in [*vars(config).items()]:
        if name.endswith("_token_id") and type(value) is int:
            setattr(config, name, min(value, 2))
        elif name.endswith("_token_index") or (name.endswith("_token_id") and type(value) is int and value > 90):
            setattr(config, name, 91)
        elif hasattr(value, "to_dict"):
            _shorten_ids(value)


def _arguments(model: Any) -> dict[str, Any]:
    """The first set of arguments with which the model runs.

    Raises:
        Exception: what the last attempt raised.
    """
    config = model.config
    parameters = inspect.signature(model.forward).parameters
    text = getattr(config, "text_config", config)
    vocabulary = int(getattr(text, "vocab_size", 99) or 99)
    tokens = torch.randint(3, max(4, min(vocabulary, 90)), (_BATCH, _LENGTH))
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", 32)
    size = size if isinstance(size, int) else 32
    pixels = torch.randn(_BATCH, int(getattr(vision, "num_channels", 3) or 3), size, size)
    channels = int(getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3)
    patch = getattr(vision, "patch_size", 8)
    patch = patch if isinstance(patch, int) else 8
    bins = int(getattr(config, "num_mel_bins", None) or 16)
    width = int(getattr(config, "hidden_size", None) or 32)
    rows = channels * patch * patch * int(getattr(vision, "temporal_patch_size", None) or 1)
    known: dict[str, list[Callable[[], Any]]] = {
        "input_ids": [lambda: tokens],
        "decoder_input_ids": [lambda: tokens[:, :8]],
        "pixel_values": [lambda: pixels, lambda: torch.randn(16, rows)],
        "input_features": [lambda: torch.randn(_BATCH, bins, 64), lambda: torch.randn(_BATCH, 64, bins)],
        "input_values": [
            lambda: torch.randn(_BATCH, 400), lambda: torch.randn(_BATCH, 1, 400), lambda: torch.randn(_BATCH, 64, bins)
        ],
        "attention_mask": [lambda: torch.ones_like(tokens)],
        "input_features_mask": [lambda: torch.ones(_BATCH, 64, dtype=torch.long)],
        "bbox": [lambda: torch.zeros(_BATCH, _LENGTH, 4, dtype=torch.long)],
        "query_embeds": [lambda: torch.randn(_BATCH, 8, width)],
        "hidden_states": [lambda: torch.randn(16, rows)],
        "grid_thw": [lambda: torch.tensor([[1, 4, 4]])],
        "image_grid_thw": [lambda: torch.tensor([[1, 4, 4]])],
    }  # fmt: skip
    main = getattr(model, "main_input_name", "input_ids")
    needed = [name for name, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    attempts = [(main,), (main, "decoder_input_ids"), ("input_ids", "pixel_values"), ("pixel_values",), ("input_ids",)]
    attempts += [("input_ids", "attention_mask"), ("input_features", "decoder_input_ids"), ("input_values",)]
    attempts += [tuple(needed), (main, *needed), (main, "bbox"), ("query_embeds",), ("hidden_states", "grid_thw")]
    if config.model_type == "longt5":  # makes no mask of its own where it is compiled
        attempts = [("input_ids", "decoder_input_ids", "attention_mask")]
    last: Exception = ValueError("a model that takes no arguments that are known here")
    for chosen in dict.fromkeys(tuple(dict.fromkeys(attempt)) for attempt in attempts if attempt):
        if not all(name in known and name in parameters for name in chosen):
            continue
        for makers in itertools.islice(itertools.product(*(known[name] for name in chosen)), 4):
            kwargs = {name: make() for name, make in zip(chosen, makers, strict=True)}
            try:
                model.eval()
                with torch.no_grad():
                    model(**kwargs)
                return kwargs
            except Exception as error:
                last = error
    raise last
