"""Write the model that the tables were printed with: two layers, a vocabulary of a thousand words, no weights.

PYTHONPATH=. python tests/realvllm/model.py tiny
"""

from __future__ import annotations

import sys
from pathlib import Path

from real import model

_WORDS = 997


def main() -> None:
    """Write the model's files into the folder named on the command line."""
    model.write(Path(sys.argv[1]), model.Shape(hidden=128, layers=2), [f"w{i}" for i in range(_WORDS)])


if __name__ == "__main__":
    main()
