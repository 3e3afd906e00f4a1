"""Build the wheel and the source archive, check what they say, and try each in an empty environment: `make package`.

    python tests/package.py [--with-packages-of-this-environment]

With the option, PyTorch and the other dependencies are those of the environment that runs this: only quickfuse is installed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRY = """
import torch, quickfuse
step = quickfuse.compile(lambda x, y: torch.tanh(x) * 2 + y, fullgraph=True, options={"raise_internal_errors": True})
x, y = torch.randn(5, 7), torch.randn(5, 7)
torch.testing.assert_close(step(x, y), torch.tanh(x) * 2 + y)
print(quickfuse.__version__, quickfuse.__file__)
"""


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, cwd=cwd)


def try_archive(archive: Path, folder: Path, shared: bool) -> None:
    """Install it into a new environment, and compile and call a function there, away from the sources."""
    venv.create(folder, with_pip=not shared, symlinks=True)
    python = folder / "bin" / "python"
    if shared:
        where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        target = subprocess.check_output(where, text=True).strip()
        ours = [path for path in sys.path if path.endswith("site-packages")]
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, archive, cwd=folder)
        (Path(target) / "shared.pth").write_text("".join(f"{path}\n" for path in ours))
    else:
        run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", archive, cwd=folder)
    run(python, "-I", "-c", TRY, cwd=folder)
    run(python, "-I", "-m", "quickfuse", "doctor", cwd=folder)


def main() -> None:
    shared = "--with-packages-of-this-environment" in sys.argv
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder / "dist")
        archives = sorted((folder / "dist").iterdir())
        run(sys.executable, "-m", "twine", "check", "--strict", *archives)
        for index, archive in enumerate(archives):
            try_archive(archive, folder / str(index), shared)
    print(f"{len(archives)} archives built, installed and tried")


if __name__ == "__main__":
    main()
