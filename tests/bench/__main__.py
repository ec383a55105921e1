"""`make bench`: every bench_*.py of this folder, one after another, each printing how it measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run the benches named on the command line (without `bench_`), or all; exit non-zero if one failed."""
    folder = Path(__file__).parent
    wanted = [folder / f"bench_{name}.py" for name in sys.argv[1:]] or sorted(folder.glob("bench_*.py"))
    failed = []
    for script in wanted:
        print(f"\n== {script.stem.removeprefix('bench_')} ==", flush=True)  # noqa: T201
        if subprocess.run([sys.executable, str(script)], check=False).returncode:
            failed.append(script.stem)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)  # noqa: T201
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
