"""Time `generate` of small models of transformers, compiled beside eager: `python benchmarks/generation.py --json r.json`.

Random weights, 40 new tokens for 2 prompts of 8, greedy, with caches that grow; one thread. A time is the least of some
runs by turns, in processor seconds, as the machine may be shared; with `--device cuda` in seconds on the clock, and also for
`mode="reduce-overhead"`. Each model has prompts as they are, and padded ones.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

import quickfuse
from quickfuse.bench import zoo

TOKENS, RUNS = 40, 7


def models() -> dict[str, Any]:
    """Names -> models."""
    import transformers as t

    rows = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    decoder = {**rows, "intermediate_size": 128, "num_key_value_heads": 2, "max_position_embeddings": 256}
    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    return {
        "Llama": t.LlamaForCausalLM(t.LlamaConfig(**decoder)),
        "Mistral": t.MistralForCausalLM(t.MistralConfig(**decoder)),
        "Qwen2": t.Qwen2ForCausalLM(t.Qwen2Config(**decoder)),
        "GPT-2": t.GPT2LMHeadModel(t.GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=256)),
        "T5": t.T5ForConditionalGeneration(
            t.T5Config(vocab_size=256, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0)
        ),
        "BART": t.BartForConditionalGeneration(
            t.BartConfig(vocab_size=256, d_model=64, encoder_ffn_dim=128, decoder_ffn_dim=128, **layers)
        ),
    }


def measure(model: Any, padded: bool, device: str, mode: str | None) -> dict[str, Any]:
    """One row of the result."""
    tokens = torch.randint(3, 256, (2, 8)).to(device)
    mask = torch.ones_like(tokens)
    mask[0, :3] = 1 - padded
    clock, finish = (time.perf_counter, torch.cuda.synchronize) if device == "cuda" else (time.process_time, lambda: None)

    def generate() -> Any:
        begin = clock()
        made = model.generate(
            tokens, attention_mask=mask, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0
        )
        finish()
        return clock() - begin, made

    plain = model.forward
    compiled = quickfuse.compile(plain, mode=mode)
    expected = generate()[1]
    model.forward = compiled
    first, made = generate()
    right = torch.equal(made, expected)
    times: dict[Any, list[float]] = {plain: [], compiled: []}
    for forward in (plain, compiled) * RUNS:
        model.forward = forward
        taken, made = generate()
        times[forward].append(taken)
        right &= torch.equal(made, expected)
    model.forward = plain
    eager, ours = min(times[plain]), min(times[compiled])
    return {"eager s": eager, "quickfuse s": ours, "ratio": ours / eager, "first call s": first,
            "graphs": compiled.graph_count, "right": right}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    given = parser.parse_args()
    modes = (None, "reduce-overhead") if given.device == "cuda" else (None,)
    zoo.vision_models()  # transformers imports torchvision, whose operators may have to be declared first
    torch.set_num_threads(1)
    rows = []
    for (name, model), padded, mode in itertools.product(models().items(), (False, True), modes):
        torch.manual_seed(0)
        row = measure(model.eval().to(given.device), padded, given.device, mode)
        rows.append({"model": name, "padded": padded, "mode": mode, **row})
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    if given.json:
        machine = torch.cuda.get_device_name() if given.device == "cuda" else given.device
        about = {"device": machine, "torch": torch.__version__, "python": platform.python_version(),
                 "date": time.strftime("%Y-%m-%d"), "commit": given.commit}  # fmt: skip
        given.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
