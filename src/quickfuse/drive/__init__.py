"""Running suspended frames of the user's program with real values: one instruction at a time, or natively.

* `driver`     segments, single instructions and native code in turn
* `step`       one instruction: `perform(frames)`; `operations` has what each one does
* `native`     the rest of a frame, or a part of it, at CPython's speed: `finish`, `run_loop`, `as_generator`
* `unwind`     an exception to its handler
* `tracebacks` what the user sees when there is none
* `micro`, `resume` the functions that CPython runs in place of an instruction or of a frame
* `callers`    the user's frames as the callers of such functions
* `effects`, `stacks`, `program`, `assemble` what the driver knows about bytecode
"""
