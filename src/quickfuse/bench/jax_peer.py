"""The workloads in JAX: Optax optimizers, jitted, with the parameters and the state donated (updated in place)."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np

from quickfuse.bench.step import Missing, Step
from quickfuse.bench.workloads import ModelWorkload, OptimizerWorkload, PointwiseWorkload, Workload


def prepare(workload: Workload) -> Step:
    """The workload as a JAX step. Each call starts from the arrays that the call before it returned.

    Raises:
        Missing: if JAX or Optax is not installed, or has no support for the device or workload.
    """
    if isinstance(workload, ModelWorkload):
        raise Missing("the models are PyTorch modules")
    jax = _import_jax(workload.device, x64=workload.dtype == "float64")
    if isinstance(workload, OptimizerWorkload):
        return _optimizer_step(workload, jax)
    return _pointwise_call(workload, jax)


def _import_jax(device: str, *, x64: bool) -> Any:
    absent = [name for name in ("jax", "optax") if importlib.util.find_spec(name) is None]
    if absent:
        raise Missing(f"not installed (pip install {' '.join(absent)})")
    # JAX takes most of the GPU's memory when it starts, unless told not to: the other variants need some too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("JAX_PLATFORMS", "cuda,cpu" if device == "cuda" else "cpu")
    import jax

    if x64:
        jax.config.update("jax_enable_x64", True)
    try:
        jax.config.update("jax_default_device", jax.devices(device)[0])
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise Missing(f"the installed JAX has no support for this device ({reason})") from error
    return jax


def _optimizer_step(workload: OptimizerWorkload, jax: Any) -> Step:
    import optax

    spec = workload.spec
    if not hasattr(optax, spec.optax_name):
        raise Missing(f"Optax has no counterpart of {workload.optimizer}")
    optimizer = getattr(optax, spec.optax_name)(0.01, **spec.optax_options)
    rng = np.random.default_rng(0)
    params, grads = (
        [_array(jax, rng, shape, workload.dtype) for shape in workload.shapes] for _ in ("parameters", "gradients")
    )

    def update(params: Any, grads: Any, state: Any) -> Any:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    current = [params, optimizer.init(params)]

    def make() -> Any:
        jitted = jax.jit(update, donate_argnums=(0, 2))

        def step() -> None:
            current[:] = jitted(current[0], grads, current[1])

        return step

    return Step(make, (), lambda: jax.block_until_ready(current))


def _pointwise_call(workload: PointwiseWorkload, jax: Any) -> Step:
    rng = np.random.default_rng(0)
    args = tuple(_array(jax, rng, workload.shape, workload.dtype) for _ in range(2))
    last: list[Any] = [None]

    def make() -> Any:
        jitted = jax.jit(lambda x, y: jax.numpy.sin(x) + jax.numpy.cos(y))

        def call(x: Any, y: Any) -> Any:
            last[0] = jitted(x, y)
            return last[0]

        return call

    return Step(make, args, lambda: jax.block_until_ready(last[0]))


def _array(jax: Any, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    return jax.numpy.asarray(rng.standard_normal(shape), dtype=dtype)
