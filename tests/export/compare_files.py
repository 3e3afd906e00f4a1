"""Compare exported models with eager mode's results, in a process that never imports the libraries that defined them.

    python tests/export/compare_files.py FILE.qfx ...

Each file gives a line of JSON: its path, and what `compare_case` says.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

LIBRARIES = ("transformers", "timm", "torchvision", "diffusers", "peft")


def main() -> None:
    import torch

    from export.zoo_cases import compare_case

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        try:
            found = compare_case(Path(name))
        except Exception as error:  # a file's failure is its result
            found = {"outcome": "error", "detail": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
        print(json.dumps({"file": name, **found}), flush=True)
    imported = [library for library in LIBRARIES if library in sys.modules]
    if imported:
        sys.exit(f"{', '.join(imported)} came to be imported: the files depend on it")


if __name__ == "__main__":
    main()
