"""`python -m breakeven.cli` is the console script."""

from breakeven.cli import main

main()
