"""The schedule: a program of loops -> few kernels in order, each run for many members in one launch.

In order: `parts` (a loop for each formula that a value chooses from), `materialize` (what is stored rather than computed
again), `long_formulas` (cut), `long_reductions` (in two stages), `hoisting` (what does not depend on all axes is computed
once), `dependence` (what must come before what), `copies` (old and new values that are both needed), `fusion` (groups that
run together), `order` (by what memory they take), `fused_loops`, `collapse` (fewer axes), `canonical` (code without sizes
and buffers), `launches` (equal bodies into one call), `shared_kernels` (one for many that differ by constants), `lifetimes`
(results where operands end). `twins` adds what was left out of a graph because it does the same with other tensors.
"""

from __future__ import annotations

from quickfuse.ir.kernel import Schedule
from quickfuse.ir.loop import Program

from .copies import make_copies
from .dependence import dependence_graph
from .fusion import fuse
from .hoisting import hoist
from .launches import group_into_launches
from .long_formulas import cut_long_formulas
from .long_reductions import split_long_reductions
from .materialize import materialize
from .order import order
from .parts import cut_into_parts
from .twins import with_twins


def schedule(program: Program) -> Schedule:
    """Fuse and group the loops of a lowered program into kernel calls, in an order that respects all dependences.

    Raises:
        Unsupported: for a value of a kind that no kernel computes.
    """
    cut_into_parts(program)
    cut_buffers = materialize(program) | cut_long_formulas(program)
    split_long_reductions(program)
    hoist(program)
    nodes, together = make_copies(dependence_graph(program))
    fuse(nodes, together, cut_buffers)
    order(nodes)
    found = group_into_launches(program, nodes)
    for node in nodes:  # they lead to each other through their groups, and would all stay until garbage is collected
        node.before, node.group = [], None
    return found


__all__ = ["schedule", "with_twins"]
