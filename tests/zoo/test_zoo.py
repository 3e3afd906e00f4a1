"""A part of the zoo, and how it is run. `make zoo` goes through all of it.

torchvision, transformers and timm come with the tests; of the other libraries what is installed is tested.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse
from zoo import compare, measure, run, table
from zoo.measure import Case, equal_cases

#: 40 small models of libraries that come with the tests, and a few of others.
_SUBSET = {
    "torchvision": "squeezenet1_1",
    "transformers": "albert bert biogpt bloom clip ctrl deberta deit distilbert electra ernie falcon gemma git glm4 "
    "gpt_bigcode gpt_neo gpt_neox layoutlm llama mixtral mpt olmo opt phi phi3 qwen3 roberta splinter starcoder2 t5 vit "
    "xglm xlnet",
    "timm": "deit_tiny_patch16_224 test_convnext test_resnet test_vit test_vit2",
    "diffusers": "AutoencoderTiny DiTTransformer2DModel FluxTransformer2DModel PixArtTransformer2DModel",
    "peft": "ia3 lora dora prompt",
}
_MODELS = [(library, name) for library, names in _SUBSET.items() for name in names.split()]
_IN_ONE_GRAPH = {(library, name) for library, name in _MODELS if library in ("torchvision", "transformers", "timm")}


@pytest.mark.parametrize(("library", "name"), _MODELS)
def test_model(library: str, name: str) -> None:
    """Evaluation, gradients and a whole training step are eager's."""
    models = run.builder_of(library)
    if models is None:
        pytest.skip(f"{library} is not installed")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found: dict[str, Any] = {}
        measure.measure(equal_cases(lambda: models.build(name)), found.update)
    finally:
        torch.set_num_threads(threads)
    assert {way: (found[way]["outcome"], found[way]["detail"]) for way in found} == dict.fromkeys(found, ("right", ""))
    assert len(found) == 3
    assert (library, name) not in _IN_ONE_GRAPH or {found[way]["graphs"] for way in found} == {1}


# how it is run ----------------------------------------------------------------------------------------------------


class Noisy(nn.Module):
    """A model with random numbers, which copies must draw alike."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = nn.functional.dropout(self.linear(x), 0.5, self.training)
        return {"y": y, "parts": [y.sum(), x.shape[0]]}


class Asking(nn.Module):
    """A model that does something else where it is compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1.2 if torch.compiler.is_compiling() else 1.0)


def test_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}
    measure.measure(equal_cases(lambda: Case(Noisy(), (torch.ones(2, 4),))), found.update)
    assert [found[way]["outcome"] for way in found] == ["right"] * 3
    assert found["eval"]["graphs"] == 1 and found["eval"]["operators"] >= 2 and found["eval"]["breaks"] == []
    asking = measure._compared(lambda: Case(Asking(), (torch.ones(2),)), measure._evaluation)
    assert asking["outcome"] == "right" and "told" in asking["detail"]
    failing = measure._compared(lambda: Case(nn.Linear(2, 2), (torch.ones(3),)), measure._evaluation)
    assert failing["outcome"] == "eager fails" and "shapes" in failing["detail"]
    right = quickfuse.compile
    monkeypatch.setattr(quickfuse, "compile", lambda function, **options: right(lambda x: function(x) * 1.2))
    wrong = measure._compared(lambda: Case(nn.Linear(2, 2), (torch.ones(2),)), measure._evaluation)
    assert wrong["outcome"] == "wrong" and wrong["distance"] > 0.1


def test_what_is_rounding() -> None:
    """A gradient that is zero but for rounding errors may be another such; one that is determined may not."""
    wanted = [torch.ones(4), torch.full((4,), 1e-6)]

    def run(*, compiled: bool = False, double: bool = False, rounded: int = 0) -> list[torch.Tensor]:
        if double:
            raise TypeError
        return [wanted[0] * (1 + 1e-7 * rounded), wanted[1] * -rounded]

    assert compare.is_right([wanted[0] * (1 + 1e-4), -wanted[1]], wanted, run)
    assert not compare.is_right([wanted[0], wanted[1] * 50], wanted, run)
    assert not compare.is_right([wanted[0] * 1.01, wanted[1]], wanted, run)
    assert not compare.is_right([wanted[0] * torch.nan, wanted[1]], wanted, run)


class Normalized(nn.Module):
    """The squares of a normalized tensor have a gradient of zero, whatever comes before."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def test_the_loss_tells_gradients_below_a_norm() -> None:
    _, weight, *_ = measure._gradients(Case(Normalized(), (torch.randn(3, 4),)), lambda function: function).__next__()
    assert weight.norm() > 0.01


def test_the_table(tmp_path: Path) -> None:
    way: dict[str, Any] = {"outcome": "right", "graphs": 2, "operators": 9, "first_s": 0.5, "peer_graphs": 1}
    way["breaks"] = [{"reason": "a call | x"}]
    for name, found in (
        ("one", {"eval": way, "gradients": way, "step": {**way, "graphs": 1}}), ("two", {"not built": "ValueError"}),
        ("three", {"eval": way, "died": "more than 3 s"}), ("four", {"died": "signal 11"}),
    ):  # fmt: skip
        path = tmp_path / "library" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"library": "library", "name": name, "commit": "abc", **found}))
    table.write(tmp_path, tmp_path / "zoo.md")
    text = (tmp_path / "zoo.md").read_text()
    assert "| library one | right | 2 | 1 | 9 | 0.5 | right | 2 | 1 | right | 1 | 1 | 0.5 | abc |" in text
    assert "more than 3 s" in text and "signal 11" in text and "| 2 | a call / x |" in text
