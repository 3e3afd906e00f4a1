"""`python -m quickfuse` is the command `quickfuse`."""

from quickfuse.cli import app

if __name__ == "__main__":
    app()
