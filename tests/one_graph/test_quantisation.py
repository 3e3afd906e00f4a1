"""Quantised numbers in the place of a tensor's, as in training that is aware of quantisation."""

import pytest
import torch
from torch import nn
from torch.ao import quantization

import quickfuse
from operator_cases import breaks

SCALE, ZERO = torch.tensor([0.1, 0.2, 0.05, 0.3]), torch.tensor([0, 1, 2, 3], dtype=torch.int32)
FUNCTIONS = {
    "numbers": lambda x, scale: torch.fake_quantize_per_tensor_affine(x, 0.1, 2, 0, 7),
    "tensors": lambda x, scale: torch.fake_quantize_per_tensor_affine(x, SCALE[:1], ZERO[:1], 0, 7),
    "channels": lambda x, scale: torch.fake_quantize_per_channel_affine(x, SCALE, ZERO, 1, 0, 7),
    "learned": lambda x, scale: torch._fake_quantize_learnable_per_tensor_affine(x, scale[:1], ZERO[:1].float(), 0, 7),
    "learned channels": lambda x, scale: torch._fake_quantize_learnable_per_channel_affine(
        x, scale, ZERO.float(), 1, 0, 7, 0.5
    ),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph_with_gradients(name, inside):
    def f(x, scale):
        y = FUNCTIONS[name](x.sin() * 2, scale)
        if inside:
            y.square().sum().backward()
        return y.cos()

    def gradients(function):
        x, scale = torch.linspace(-2, 2, 24).view(2, 3, 4).transpose(1, 2), SCALE.clone()
        x.requires_grad_(), scale.requires_grad_(name.startswith("learned"))
        y = function(x, scale)
        if not inside:
            y.sum().backward()
        return y.detach(), x.grad, scale.grad

    compiled = quickfuse.compile(f)
    for _ in range(2):
        wanted, found = gradients(f), gradients(compiled)
        for one, two in zip(wanted, found, strict=True):
            torch.testing.assert_close(two, one)
            assert one is None or one.stride() == two.stride()
    assert compiled.graph_count == 1 and not compiled.breaks


def test_a_module_that_observes_in_a_training_step():
    def make():
        torch.manual_seed(0)
        layer, quantised = nn.Linear(4, 4), quantization.default_fused_act_fake_quant()
        fixed = quantization.default_fixed_qparams_range_0to1_fake_quant()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)

        def step(x):
            loss = (quantised(layer(x)) * fixed(x.sigmoid())).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach(), quantised.scale.clone(), quantised.zero_point.clone(), layer.weight.detach().clone()

        return step

    plain, compiled = make(), quickfuse.compile(make())
    for turn in range(4):
        x = torch.randn(3, 4) * (turn + 1)
        for one, two in zip(plain(x), compiled(x), strict=True):
            torch.testing.assert_close(two, one)
    assert compiled.graph_count == 1 and not compiled.breaks


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.convolution, self.norm, self.linear = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x):
        x = self.norm(self.convolution(self.quant(x))).relu()
        return self.dequant(self.linear(x.mean((2, 3))))


@pytest.mark.parametrize("compiled", ["model", "step"])
@pytest.mark.filterwarnings("ignore")
def test_a_prepared_model(compiled):
    """Its observers, which are calls, have kernels around them, once the first step has given their buffers a size."""

    def train(compiled):
        torch.manual_seed(0)
        model = Small().train()
        model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
        quantization.prepare_qat(model, inplace=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        net = quickfuse.compile(model) if compiled == "model" else model

        def step(x, target):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), target)
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = quickfuse.compile(step) if compiled == "step" else step
        losses, said = [], []
        for k in range(6):
            if k == 3:
                model.apply(quantization.disable_observer)
            if k == 4:
                model.apply(torch.nn.intrinsic.qat.freeze_bn_stats)
            reasons = []
            with breaks(reasons):
                losses.append(run(torch.randn(4, 3, 8, 8), torch.randint(4, (4,))).item())
            said += reasons if k else []
        return losses, model.state_dict(), said

    (losses, state, said), (expected, states, _) = train(compiled), train("")
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(state, states)
    assert not said
