"""The symbolic machine: `bytecode_interpreter` runs instructions, of which each has a function in `opcodes`,
`opcodes_building` or `opcodes_flow`.
"""
