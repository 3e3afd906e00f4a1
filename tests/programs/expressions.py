"""Templates of expressions, by kind of value. See templates.py for the holes.

Numbers stay small (remainders), strings short (slices), tensors bounded (tanh, clamp), so that loops cannot blow them up.
Kinds of tensors: `mat` has the (rows, columns) of the call, `vec` (columns,), `scal` no dimension, `imat` is an integer
`mat`, `ten` has any shape. Lists are `ints`, `mats`, `strs` and `nested` (of ints), dictionaries `intmap`, `matmap` (by
`key`) and `idmap` (by number), `opt` is a `mat` or None, `row` and `any` are what no other template can use.
"""

from __future__ import annotations

from programs.container_expressions import CONTAINERS
from programs.scalar_expressions import NUMBERS, STRINGS
from programs.tensor_expressions import TENSORS

EXPRESSIONS = {**NUMBERS, **STRINGS, **TENSORS, **CONTAINERS}

#: Literals, and the simplest expression of a kind. Tensors have none: each function has at least one tensor parameter.
LITERALS = {
    "int": ["0", "1", "2", "3", "-1", "4"],
    "small": ["2", "3", "1", "abs(<var int>) % 4"],
    "float": ["0.5", "-0.25", "1.5", "2.0"],
    "cond": ["<var int> > 1", "<var int> % 2 == 0", "<var bool>", "<var mat>.shape[0] == 2", "<var mat>.sum() > 0",
             "len(<var ints>) > 1"],
    "bool": ["True", "False"],
    "str": ["'ab'", "'x-y'", "''"],
    "key": ["'a'", "'b'", "'c'"],
    "vec": ["<var mat>[0]"],
    "scal": ["<var mat>.sum()", "<var mat>.mean()"],
    "imat": ["<var mat>.long()"],
    "ten": ["<var mat>.t()"],
    "opt": ["None", "<var mat>"],
    "strop": ["'tanh'", "'sin'"],
    "ints": ["[1, 2]", "[]", "[3]"],
    "mats": ["[<var mat>]", "[]"],
    "strs": ["['p', 'q']"],
    "nested": ["[[1], [2, 3]]"],
    "intmap": ["{'a': 1}", "{}"],
    "matmap": ["{'a': <var mat>}", "{}"],
    "idmap": ["{0: <var mat>}"],
    "intset": ["{1, 2}", "set()"],
    "triple": ["(1, 2, 3)"],
    "couple": ["(<var mat>, 1)"],
    "pair": ["Pair(<var mat>, 2)"],
    "settings": ["Settings(0.5)"],
    "matqueue": ["collections.deque([<var mat>])"],
    "intqueue": ["collections.deque([1, 2])"],
    "groups": ["collections.defaultdict(list)"],
    "counts": ["collections.defaultdict(int)"],
    "point": ["Point(1, <var mat>)"],
    "matfn": ["torch.sin", "torch.relu"],
    "intfn": ["abs"],
    "intgen": ["iter([1, 2])"],
    "matgen": ["iter([<var mat>])"],
}  # fmt: skip

#: How variables of a kind are called: the first letters of their names.
PREFIXES = {
    "int": "n", "small": "n", "float": "f", "cond": "flag", "bool": "flag", "str": "s", "key": "key", "mat": "x", "vec": "v",
    "scal": "t", "imat": "ix", "ten": "y", "opt": "maybe", "ints": "ns", "mats": "xs", "strs": "words", "nested": "rows",
    "intmap": "table", "matmap": "named", "idmap": "byid", "intset": "seen", "triple": "tri", "couple": "couple",
    "pair": "pair", "settings": "settings", "matqueue": "queue", "intqueue": "numbers", "groups": "groups",
    "counts": "counts", "point": "point", "box": "box", "matfn": "fn", "intfn": "fi", "intgen": "gi", "matgen": "gx",
    "exc": "error", "row": "row", "any": "z",
}  # fmt: skip
