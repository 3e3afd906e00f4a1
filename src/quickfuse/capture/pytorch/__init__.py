"""PyTorch's functions: `functions` finds the rule of one, `operators` makes it a node of the graph. The others have what is
more than an operator: `backward()`, functional transforms, checkpoints, functions with gradients of their own,
`__torch_function__`.
"""
