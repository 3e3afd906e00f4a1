"""Tensors on devices that there are no kernels for."""

import torch

import quickfuse


def test_operators_on_the_meta_device_run_as_they_are():
    def function(x):
        return x.to("meta") + 1, x * 2

    made, doubled = quickfuse.compile(function)(torch.ones(2))
    assert made.device.type == "meta"
    assert made.shape == (2,)
    torch.testing.assert_close(doubled, torch.full((2,), 2.0))
