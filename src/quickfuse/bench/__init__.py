"""`quickfuse bench ...`: quickfuse beside its peers on this machine.

This package and the tests are the only places that may use PyTorch's own compiler, as a peer to measure against.

* `workloads`      what is measured: an optimizer step, a pointwise function; parameter shapes
* `optimizers`     the optimizers, their options, and the bytes a step must move
* `variants`       one workload as run by one peer; `jax_peer` is the one that is not PyTorch
* `cold`           the first call, each variant in a fresh process (`cold_child`)
* `steady`         the variants interleaved in one process, beside the bandwidth of a copy
* `run`            both of them for all variants; `compile_time` the first call by stage
* `figures`        numbers that only have a limit: the time of `guards`, and of a `python_loop` that is compiled
* `grid`          many measurements on a GPU, each in a process of its own (`grid_child`): `grid_models`, `grid_operators`
* `traffic`       the kernels of a model on a GPU, and the bytes that they move
* `report`         the numbers, as data and as JSON; `machine` where they were measured
* `render`, `plot` the numbers for people
"""

from __future__ import annotations
