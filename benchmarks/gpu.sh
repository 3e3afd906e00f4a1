#!/usr/bin/env bash
# Measure every committed GPU benchmark again: bash benchmarks/gpu.sh [FOLDER]
# COLD_TIMEOUT=60 keeps torch.compile's slowest first calls from taking minutes.
set -euo pipefail
out=${1:-"$(dirname "$0")/results"}
timeout=${COLD_TIMEOUT:-300}

optimizer() { # name, then options of `quickfuse bench optimizer`
    local name=$1
    shift
    quickfuse bench optimizer --device cuda --cold-timeout "$timeout" --json "$out/optimizer-gpu-$name.json" "$@"
}

optimizer 1-10x1024x1024 --params 10 --shape 1024x1024
optimizer 2-gpt2 --params gpt2
optimizer 3-200x64x64 --params 200 --shape 64x64
# With 1000 small tensors the host is what takes the time, and once JAX has run in a process the host's work takes 1.3 to
# 1.4 times as long there, eager's and ours alike (results/with-jax-gpu-1000x64x64.json): JAX sits this one out.
optimizer 4-1000x64x64 --params 1000 --shape 64x64 --peers eager,fused,torch.compile
quickfuse bench pointwise --device cuda --json "$out/pointwise-gpu-10x10.json"
quickfuse bench compile-time --device cuda --json "$out/compile-time-gpu-10x1024x1024.json"
