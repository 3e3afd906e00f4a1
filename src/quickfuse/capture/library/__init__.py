"""Python's builtins and standard library: a rule for a function (`builtin_calls`, `function_calls`, `number_calls`, `text`,
`messages`, `random_numbers`), or Python code that does the same, which is captured (`in_python`).
"""
