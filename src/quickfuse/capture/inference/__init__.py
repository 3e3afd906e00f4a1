"""What an operator gives, without running it on the user's tensors: `Result`, which metadata and operands it changes.

Questions go from the cheapest answer to the dearest: rules of our own (`elementwise`, `shape_rules`), a run on small tensors
(`probes`), a run on PyTorch's tensors without data (`stand_ins`). `metadata` asks them in this order.
"""
