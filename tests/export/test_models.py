"""Real models exported, saved and loaded: values, gradients and buffers are eager's, in both modes.

Models of timm and transformers are tested where these are installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse
from export.programs import check_like_eager, through_file
from quickfuse.bench.zoo import GPT, LstmLanguageModel, UNet
from vision import vision_models

Made = tuple[nn.Module, tuple[Any, ...]]


def _vision(name: str, size: int = 64, batch: int = 2, **settings: Any) -> Callable[[], Made]:
    def make() -> Made:
        return getattr(vision_models(), name)(num_classes=10, **settings), (torch.randn(batch, 3, size, size),)

    return make


def _narrow(name: str, size: int, width: int, **settings: Any) -> Callable[[], Made]:
    """A model with fewer numbers between its linear layers, which are a hundred million parameters else."""

    def make() -> Made:
        model, args = _vision(name, size, **settings)()
        features = next(layer for layer in model.classifier if isinstance(layer, nn.Linear)).in_features
        model.classifier = nn.Sequential(
            nn.Linear(features, width), nn.ReLU(True), nn.Dropout(), nn.Linear(width, width), nn.ReLU(True), nn.Dropout(),
            nn.Linear(width, 10),
        )  # fmt: skip
        return model, args

    return make


def _tokens(model: Callable[[], nn.Module], time: int) -> Callable[[], Made]:
    return lambda: (model(), (torch.randint(50, (2, time)),))


BENCH: dict[str, Callable[[], Made]] = {
    "densenet121": _vision("densenet121"),
    "resnet18": _vision("resnet18"),
    "resnet50": _vision("resnet50"),
    "mobilenet_v3_large": _vision("mobilenet_v3_large"),
    "vit": lambda: (vision_models().VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=10), (torch.randn(2, 3, 32, 32),)),
    "unet": lambda: (UNet(4, 2), (torch.randn(2, 3, 16, 16),)),
    "gpt": _tokens(lambda: GPT(50, 16, 32, 4, 2), 12),
    "lstm": _tokens(lambda: LstmLanguageModel(50, 16), 6),
    "lstm_cells": _tokens(lambda: LstmLanguageModel(50, 16, cells=True), 4),
}

#: One of each kind; `make export-zoo` has others of some.
VISION: dict[str, Callable[[], Made]] = {
    **{
        name: _vision(name, 96)
        for name in (
            "squeezenet1_1 mobilenet_v2 efficientnet_b0 regnet_y_400mf resnext50_32x4d shufflenet_v2_x0_5 mnasnet0_5 swin_t "
            "swin_v2_t convnext_tiny"
        ).split()
    },
    "alexnet": _narrow("alexnet", 64, 64),
    "vgg11_bn": _narrow("vgg11_bn", 32, 64, init_weights=False),
    "googlenet": _vision("googlenet", 96, aux_logits=False, init_weights=False),
    "inception_v3": _vision("inception_v3", 96, aux_logits=False, init_weights=False),
}  # fmt: skip

TIMM = (
    "resnet10t resnetv2_50 seresnet50 ecaresnet26t convnext_atto convnextv2_atto efficientnet_lite0 ghostnet_100 "
    "hrnet_w18_small mobilenetv4_conv_small mobileone_s0 repvgg_a0 rexnet_100 tf_efficientnet_b0 vit_tiny_patch16_224 "
    "deit_tiny_patch16_224 mixer_s32_224 gmlp_ti16_224 poolformer_s12 edgenext_xx_small fastvit_t8 xcit_nano_12_p16_224"
).split()

TRANSFORMERS: dict[str, dict[str, Any]] = {
    "Bert": {}, "Roberta": {}, "DistilBert": {"dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 64}, "Albert": {},
    "Electra": {"embedding_size": 32}, "GPT2": {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64},
    "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32}, "GPTNeoX": {}, "Llama": {"num_key_value_heads": 2},
    "Mistral": {"num_key_value_heads": 2}, "Qwen2": {"num_key_value_heads": 2}, "Phi": {},
    "Gemma": {"num_key_value_heads": 2, "head_dim": 8},
    "MPNet": {}, "T5Encoder": {},
}  # fmt: skip
_SMALL = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(made: Made, training: bool, tmp_path: Any) -> None:
    model, args = made
    model.train(training)
    exported = through_file(quickfuse.export(model, args), tmp_path)
    check_like_eager(model, exported, args, 2 if training else 1)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", BENCH)
def test_models_of_the_benchmark(name: str, training: bool, tmp_path: Any) -> None:
    torch.manual_seed(0)
    check(BENCH[name](), training, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", VISION)
def test_models_of_torchvision(name: str, tmp_path: Any) -> None:
    torch.manual_seed(0)
    check(VISION[name](), len(name) % 2 == 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMM)
def test_models_of_timm(name: str, tmp_path: Any) -> None:
    vision_models()  # which timm needs
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=10)
    size = 224 if "224" in name else 96
    check((model, (torch.randn(2, 3, size, size),)), len(name) % 2 == 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_models_of_transformers(name: str, tmp_path: Any) -> None:
    vision_models()  # which transformers needs
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if name == "T5Encoder":
        config = transformers.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
        model = transformers.T5EncoderModel(config)
    else:
        config = getattr(transformers, f"{name}Config")(**{**_SMALL, **TRANSFORMERS[name], "use_cache": False})
        model = getattr(transformers, f"{name}Model")(config)
    check((model, (torch.randint(50, (2, 7)),)), False, tmp_path)
