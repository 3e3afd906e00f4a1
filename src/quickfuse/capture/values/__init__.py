"""What can be asked of the values on the symbolic stack: a class for each kind of value.

Each answers the questions of `kind.Kind`: an attribute, an item, iteration, its length, its truth, a call, an operator,
membership, being a key, a method of its builtin class, and how to make the real value again after the graph. So `len()` of
a set is `SetKind.length` in `sets.py`, and what the methods of lists do is in the table `ListKind.methods` in `sequence.py`.
What a class of the user's says in Python about an operation comes first: see `containers.py` and `attributes.py` in
`capture/objects/`.

`table.py` says which Python class, or class of `capture/symbolic/`, is of which kind.
"""
