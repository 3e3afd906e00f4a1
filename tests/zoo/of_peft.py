"""Adapters of `peft` in small models of `transformers`."""

from __future__ import annotations

from typing import Any

import torch

from zoo.measure import Case

_LINEAR = {"target_modules": ["q_proj", "v_proj"]}
_ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("LoraConfig", {**_LINEAR, "r": 4, "lora_dropout": 0.1}),
    "dora": ("LoraConfig", {**_LINEAR, "r": 4, "use_dora": True}),
    "rslora": ("LoraConfig", {**_LINEAR, "r": 4, "use_rslora": True}),
    "adalora": ("AdaLoraConfig", {**_LINEAR, "init_r": 4, "target_r": 2, "total_step": 10}),
    "ia3": ("IA3Config", {"target_modules": ["k_proj", "v_proj"], "feedforward_modules": []}),
    "loha": ("LoHaConfig", {**_LINEAR, "r": 4}),
    "lokr": ("LoKrConfig", {**_LINEAR, "r": 4}),
    "oft": ("OFTConfig", {**_LINEAR, "r": 0, "oft_block_size": 8}),
    "vera": ("VeraConfig", {"target_modules": ["q_proj"], "r": 4}),
    "fourierft": ("FourierFTConfig", {**_LINEAR, "n_frequency": 20}),
    "prefix": ("PrefixTuningConfig", {"num_virtual_tokens": 4}),
    "prompt": ("PromptTuningConfig", {"num_virtual_tokens": 4}),
    "ptuning": ("PromptEncoderConfig", {"num_virtual_tokens": 4, "encoder_hidden_size": 16}),
}


def names() -> list[str]:
    return [*_ADAPTERS]


def build(name: str) -> Case:
    import peft
    from transformers import LlamaConfig, LlamaForCausalLM

    kind, settings = _ADAPTERS[name]
    base = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=99, max_position_embeddings=64,
        )
    )  # fmt: skip
    config = getattr(peft, kind)(task_type="CAUSAL_LM", **settings)
    tokens = torch.randint(3, 90, (2, 12))
    return Case(peft.get_peft_model(base, config), (), {"input_ids": tokens, "labels": tokens})
