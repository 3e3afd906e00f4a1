"""The torch.fx graph of a segment: placeholders, nodes, numbers that compiled code computes, grad mode and autocast.

`building` makes it; `history` and `shadow` say what autograd will know of its tensors, `contents` what is in those of one
element, and `failing` which nodes may raise when they run.
"""
