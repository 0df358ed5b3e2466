"""The command line: `contraflow COMMAND`, also `python -m contraflow COMMAND`."""

from __future__ import annotations

from .cli import main

if __name__ == "__main__":
    main()
