"""One process of `grid`: `python grid_child.py TASK`, a JSON object.

It gets ready, says so in a line of JSON, waits for a line on standard input, measures, and answers in another line.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    task: dict[str, Any] = json.loads(sys.argv[1])
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is not for the parent
    if task["suite"] == "models":
        from quickfuse.bench.grid_models import measure
    else:
        from quickfuse.bench.grid_operators import measure
    from quickfuse.bench.cold import explain

    steps = measure(task)
    try:
        print(json.dumps(next(steps)), file=answers, flush=True)
        sys.stdin.readline()
        print(json.dumps(next(steps)), file=answers, flush=True)
    except Exception as error:  # a peer may fail in any way: that is a result too
        print(json.dumps({"failed": explain(error)}), file=answers, flush=True)


if __name__ == "__main__":
    main()
