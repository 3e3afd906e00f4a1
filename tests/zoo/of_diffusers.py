"""Small models of `diffusers`: U-Nets, autoencoders, transformers, control networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from zoo.measure import Case

_STEP = torch.tensor([10])
_UNET = {
    "sample_size": 16, "in_channels": 4, "out_channels": 4, "layers_per_block": 1, "block_out_channels": (16, 32),
    "norm_num_groups": 8,
}  # fmt: skip
_CROSS = {
    **_UNET, "cross_attention_dim": 32, "attention_head_dim": 8, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}  # fmt: skip
_AUTOENCODER = {
    "in_channels": 3, "out_channels": 3, "block_out_channels": (16, 32), "latent_channels": 4, "norm_num_groups": 8,
    "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
}  # fmt: skip


def _made(name: str, settings: dict[str, Any], *args: Any, **kwargs: Any) -> Case:
    import diffusers

    return Case(getattr(diffusers, name)(**settings), args, kwargs)


def _latent(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


_MODELS: dict[str, Callable[[], Case]] = {
    "UNet2DModel": lambda: _made(
        "UNet2DModel", {**_UNET, "in_channels": 3, "out_channels": 3, "attention_head_dim": 8,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
        _latent(2, 3, 16, 16), _STEP),
    "UNet2DConditionModel": lambda: _made(
        "UNet2DConditionModel", _CROSS, _latent(2, 4, 16, 16), _STEP, _latent(2, 7, 32)),
    "UNet2DConditionModel-linear": lambda: _made(
        "UNet2DConditionModel", {**_CROSS, "use_linear_projection": True, "attention_head_dim": (2, 4)},
        _latent(2, 4, 16, 16), _STEP, _latent(2, 7, 32)),
    "UNet3DConditionModel": lambda: _made(
        "UNet3DConditionModel", {**_CROSS, "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
        "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D")}, _latent(1, 4, 2, 16, 16), _STEP, _latent(1, 7, 32)),
    "UNetSpatioTemporalConditionModel": lambda: _made(
        "UNetSpatioTemporalConditionModel", {"sample_size": 16, "in_channels": 4, "out_channels": 4,
        "block_out_channels": (32, 64), "layers_per_block": 1, "cross_attention_dim": 32, "num_attention_heads": 4,
        "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 24, "num_frames": 2,
        "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal")},
        _latent(1, 2, 4, 16, 16), _STEP, _latent(1, 1, 32), torch.ones(1, 3)),
    "ControlNetModel": lambda: _made(
        "ControlNetModel", {"in_channels": 4, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8,
        "cross_attention_dim": 32, "attention_head_dim": 8, "conditioning_embedding_out_channels": (8, 16),
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")},
        _latent(2, 4, 16, 16), _STEP, _latent(2, 7, 32), _latent(2, 3, 32, 32)),
    "AutoencoderKL": lambda: _made("AutoencoderKL", _AUTOENCODER, _latent(2, 3, 32, 32)),
    "AsymmetricAutoencoderKL": lambda: _made(
        "AsymmetricAutoencoderKL", {"in_channels": 3, "out_channels": 3, "down_block_types": ("DownEncoderBlock2D",) * 2,
        "down_block_out_channels": (16, 32), "layers_per_down_block": 1, "up_block_types": ("UpDecoderBlock2D",) * 2,
        "up_block_out_channels": (16, 32), "layers_per_up_block": 1, "latent_channels": 4, "norm_num_groups": 8},
        _latent(2, 3, 32, 32)),
    "AutoencoderTiny": lambda: _made(
        "AutoencoderTiny", {"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16),
        "num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1), "latent_channels": 4}, _latent(2, 3, 32, 32)),
    "VQModel": lambda: _made(
        "VQModel", {**_AUTOENCODER, "latent_channels": 3, "num_vq_embeddings": 32}, _latent(2, 3, 32, 32)),
    "AutoencoderKLTemporalDecoder": lambda: _made(
        "AutoencoderKLTemporalDecoder", {"in_channels": 3, "out_channels": 3, "block_out_channels": (32, 64),
        "down_block_types": ("DownEncoderBlock2D",) * 2, "latent_channels": 4, "layers_per_block": 1},
        _latent(2, 3, 32, 32), num_frames=2),
    "AutoencoderDC": lambda: _made(
        "AutoencoderDC", {"in_channels": 3, "latent_channels": 4, "attention_head_dim": 2,
        "encoder_block_types": ("ResBlock", "EfficientViTBlock"), "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
        "encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8), "encoder_qkv_multiscales": ((), (5,)),
        "decoder_qkv_multiscales": ((), (5,)), "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1),
        "decoder_norm_types": "rms_norm", "decoder_act_fns": "silu"}, _latent(1, 3, 32, 32)),
    "DiTTransformer2DModel": lambda: _made(
        "DiTTransformer2DModel", {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "num_layers": 2,
        "sample_size": 8, "patch_size": 2, "num_embeds_ada_norm": 8}, _latent(2, 4, 8, 8), torch.tensor([3, 4]),
        torch.tensor([1, 2])),
    "PixArtTransformer2DModel": lambda: _made(
        "PixArtTransformer2DModel", {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 8,
        "num_layers": 2, "sample_size": 8, "patch_size": 2, "cross_attention_dim": 16, "caption_channels": 8,
        "use_additional_conditions": False}, _latent(2, 4, 8, 8), encoder_hidden_states=_latent(2, 5, 8),
        timestep=torch.tensor([3, 4]),
        added_cond_kwargs={"resolution": None, "aspect_ratio": None}),
    "Transformer2DModel": lambda: _made(
        "Transformer2DModel", {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 32, "num_layers": 2,
        "cross_attention_dim": 16, "sample_size": 8, "norm_num_groups": 8}, _latent(2, 32, 8, 8), _latent(2, 5, 16)),
    "SD3Transformer2DModel": lambda: _made(
        "SD3Transformer2DModel", {"sample_size": 16, "patch_size": 2, "in_channels": 4, "num_layers": 2,
        "attention_head_dim": 8, "num_attention_heads": 4, "joint_attention_dim": 32, "caption_projection_dim": 32,
        "pooled_projection_dim": 64, "out_channels": 4}, _latent(2, 4, 16, 16), _latent(2, 5, 32), _latent(2, 64),
        torch.tensor([3, 4])),
    "FluxTransformer2DModel": lambda: _made(
        "FluxTransformer2DModel", {"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1,
        "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32,
        "axes_dims_rope": [4, 4, 8]}, _latent(1, 16, 4), _latent(1, 7, 32), _latent(1, 32), torch.tensor([0.5]),
        torch.zeros(16, 3), torch.zeros(7, 3)),
    "AuraFlowTransformer2DModel": lambda: _made(
        "AuraFlowTransformer2DModel", {"sample_size": 16, "patch_size": 2, "in_channels": 4, "num_mmdit_layers": 1,
        "num_single_dit_layers": 1, "attention_head_dim": 8, "num_attention_heads": 4, "caption_projection_dim": 32,
        "joint_attention_dim": 32, "out_channels": 4, "pos_embed_max_size": 256}, _latent(2, 4, 16, 16), _latent(2, 5, 32),
        torch.tensor([0.3, 0.4])),
    "LuminaNextDiT2DModel": lambda: _made(
        "LuminaNextDiT2DModel", {"sample_size": 16, "patch_size": 2, "in_channels": 4, "hidden_size": 24, "num_layers": 2,
        "num_attention_heads": 3, "num_kv_heads": 1, "multiple_of": 16, "ffn_dim_multiplier": None, "norm_eps": 1e-5,
        "scaling_factor": 1.0, "cross_attention_dim": 32, "qk_norm": True}, _latent(2, 4, 16, 16), torch.rand(2),
        _latent(2, 5, 32), torch.ones(2, 5), torch.randn(384, 384, 4), {}),
    "PriorTransformer": lambda: _made(
        "PriorTransformer", {"num_attention_heads": 2, "attention_head_dim": 4, "num_layers": 2, "embedding_dim": 8,
        "num_embeddings": 7, "additional_embeddings": 4}, _latent(2, 8), 2, _latent(2, 8), _latent(2, 7, 8)),
    "UNet1DModel": lambda: _made(
        "UNet1DModel", {"block_out_channels": (32, 64, 128, 256), "in_channels": 14, "out_channels": 14,
        "time_embedding_type": "positional", "use_timestep_embedding": True, "out_block_type": "OutConv1DBlock",
        "down_block_types": ("DownResnetBlock1D",) * 4, "up_block_types": ("UpResnetBlock1D",) * 3, "act_fn": "mish",
        "mid_block_type": "MidResTemporalBlock1D"}, _latent(2, 14, 16), torch.tensor([3, 4])),
    "CogVideoXTransformer3DModel": lambda: _made(
        "CogVideoXTransformer3DModel", {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4,
        "out_channels": 4, "time_embed_dim": 2, "text_embed_dim": 8, "num_layers": 2, "sample_width": 8, "sample_height": 8,
        "sample_frames": 8, "patch_size": 2, "temporal_compression_ratio": 4, "max_text_seq_length": 8},
        _latent(1, 2, 4, 8, 8), _latent(1, 8, 8), torch.tensor([3])),
}  # fmt: skip


def names() -> list[str]:
    return [*_MODELS]


def build(name: str) -> Case:
    return _MODELS[name]()
