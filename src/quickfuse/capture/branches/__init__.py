"""Branches on what is in tensors, which need not end a graph: on few whole numbers that guards hold (`held_contents`), on
conditions that guards compute again (`input_conditions`), and on what hardly ever happens (`assertions`).
"""
