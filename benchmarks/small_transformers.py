"""`python benchmarks/small_transformers.py [part of a name ...]`: small models of `transformers`, with torch.compile beside.

Some 100,000 random parameters each, so that the host takes a large part of the time. Evaluation under `no_grad`, and a
training step without dropout: forward with the loss compiled, `backward()` outside. The three run by turns on one thread;
shown are the medians in microseconds of processor time, how many graphs there are, and the ratios.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch

import quickfuse
from processor_time import interleaved
from quickfuse.bench import zoo


def models() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Names -> models and arguments of a call, labels among them."""
    import transformers as t

    tokens = torch.randint(3, 256, (2, 16))
    rows = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    heads = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    feeds = {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    texts = {"input_ids": tokens, "labels": tokens}
    whisper = t.WhisperConfig(
        vocab_size=256, d_model=64, num_mel_bins=20, max_source_positions=30, max_target_positions=40, **heads, **feeds,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    t5 = t.T5Config(vocab_size=256, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0)
    vit = t.ViTConfig(**{**rows, "image_size": 32, "patch_size": 8})
    return {
        "BERT": (t.BertForMaskedLM(t.BertConfig(**rows)), texts),
        "Llama": (t.LlamaForCausalLM(t.LlamaConfig(**rows, num_key_value_heads=2)), texts),
        "GPT-2": (t.GPT2LMHeadModel(t.GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=64)), texts),
        "T5": (t.T5ForConditionalGeneration(t5), texts),
        "Whisper": (
            t.WhisperForConditionalGeneration(whisper), {"input_features": torch.randn(2, 20, 60), "labels": tokens},
        ),
        "ViT": (
            t.ViTForImageClassification(vit), {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])},
        ),
    }  # fmt: skip


def turn_of(model: Any, forward: Callable[..., Any], given: dict[str, Any], trains: bool) -> Callable[[], torch.Tensor]:
    def evaluates() -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = forward(**given).logits
        return logits

    def steps() -> torch.Tensor:
        model.zero_grad()
        loss: torch.Tensor = forward(**given).loss
        loss.backward()
        return loss.detach()

    return steps if trains else evaluates


def compared(model: Any, given: dict[str, Any], trains: bool, peers: list[str]) -> tuple[dict[str, float], int]:
    """Median microseconds of each, and the number of graphs that quickfuse makes."""
    model.eval()
    quickfuse.reset()
    torch.compiler.reset()
    compiled = quickfuse.compile(model.forward)
    forwards = {"eager": model.forward, "quickfuse": compiled}
    if "torch.compile" in peers:
        forwards["torch.compile"] = torch.compile(model.forward)
    turns = [turn_of(model, forward, given, trains) for forward in forwards.values()]
    expected = turns[0]()
    for turn in turns[1:]:
        for _ in range(5):
            torch.testing.assert_close(turn(), expected, rtol=1e-4, atol=1e-4)
    times = interleaved(turns)
    return dict(zip(forwards, map(statistics.median, times), strict=True)), compiled.graph_count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--peers", default="torch.compile", help="beside eager; '' for nothing else")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    zoo.vision_models()  # transformers imports torchvision, whose operators may have to be declared first
    torch.set_num_threads(1)
    torch.manual_seed(0)
    versions = f"Python {platform.python_version()}, PyTorch {torch.__version__}, {platform.machine()}"
    print(f"{versions}, microseconds of processor time")
    print(f"{'':24}{'eager':>9}{'quickfuse':>11}{'torch.compile':>15}{'graphs':>8}{'ours/eager':>12}{'ours/theirs':>13}")
    for name, (model, given) in models().items():
        if options.names and not any(part in name for part in options.names):
            continue
        for trains in (False, True):
            found, graphs = compared(model, given, trains, [options.peers])
            ours, theirs = found["quickfuse"], found.get("torch.compile", float("nan"))
            print(
                f"{name + (', training' if trains else ', evaluation'):24}{found['eager']:9.0f}{ours:11.0f}{theirs:15.0f}"
                f"{graphs:8}{ours / found['eager']:12.2f}{ours / theirs:13.2f}", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
