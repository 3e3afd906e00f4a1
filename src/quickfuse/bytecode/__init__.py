"""CPython's bytecode: the one place that knows how its versions differ.

* `decoding`  code objects as instructions that are the same for all versions
* `table`     what is said of a version; `python_3_11` and so on say it
"""
