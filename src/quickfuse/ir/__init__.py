"""The data that stages pass to each other.

A stage imports this package and none of its neighbours. In the order of the pipeline:

* `values`  what is known of a tensor or number without looking at its contents
* `source`  where in the user's program a value comes from, as a printable path
* `guard`   a fact about a source that a specialisation relies on
* `trace`   where in the program something happened, noted cheaply and readable later
* `marks`   what a user told the compiler about a function
* `segment` a captured part of the user's program: graph, inputs, guards, effects
* `expr`    scalar expressions: what is computed for one element
* `loop`    a program of loops over elements, and calls of ATen operators
* `kernel`  fused, grouped loops: what the code generators turn into source
"""
