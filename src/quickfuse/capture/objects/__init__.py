"""Python's data model: attributes and how classes bind them, making and copying objects, operators, containers and
iterators, names, exceptions on their way, generators. These are the parts of an answer; `values/` says which kind of value
gives which.
"""
