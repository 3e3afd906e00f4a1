#!/usr/bin/env bash
# Measure every committed CPU benchmark again: bash benchmarks/cpu.sh [FOLDER]
# Close whatever else runs on the machine first. It takes about an hour and a half: torch.compile's first calls are most of it.
set -euo pipefail
out=${1:-"$(dirname "$0")/results"}

optimizer() { # name, then options of `quickfuse bench optimizer`
    local name=$1
    shift
    quickfuse bench optimizer --device cpu --json "$out/optimizer-cpu-$name.json" "$@"
}

optimizer 1-10x1024x1024 --params 10 --shape 1024x1024
optimizer 2-100x64x64 --params 100 --shape 64x64
optimizer 3-1000x64x64 --params 1000 --shape 64x64
quickfuse bench pointwise --device cpu --json "$out/pointwise-cpu-10x10.json"
quickfuse bench guards --json "$out/guards.json"
quickfuse bench python-loop --json "$out/python-loop.json"
quickfuse bench breaks --json "$out/breaks.json"
quickfuse bench compile-time --device cpu --json "$out/compile-time-cpu-10x1024x1024.json"
quickfuse bench models --device cpu --modes eval,train --json-folder "$out"
quickfuse bench operators --json "$out/operators-cpu.json"
quickfuse bench export --json "$out/export.json"
