"""The program of the fresh process: `python cold_child.py TASK.json ANSWER.json`. See `cold`.

A script and not a module of the package to run, because importing the package is one of the things it measures.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(task: Path, answer: Path) -> None:
    imports: dict[str, float] = {}
    for name in ("torch", "quickfuse"):
        start = time.perf_counter()
        __import__(name)
        imports[name] = time.perf_counter() - start
    from quickfuse.bench.cold import answer_task

    result = answer_task(json.loads(task.read_text()), imports)
    answer.write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
