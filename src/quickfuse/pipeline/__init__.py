"""From the callable that a user holds to compiled code, in the order of a call.

* `compiled`    the callable: it checks guards, and calls what was compiled, or has it compiled
* `callables`   the Python function in it
* `points`      places where segments begin, and what was compiled for each
* `worth`, `trials`  what is left to Python, by rule and by measuring
* `specialise`  from a captured segment to a callable: every stage after capture
* `subgraphs`   graphs with calls that have gradients of their own
* `joining`     a graph that needs gradients: forward and backward
* `kernels`     a graph without: lower, schedule, verify, emit, launch
* `interrupted` going on where an operator of a graph failed
* `report`      what is written about an internal failure
"""
