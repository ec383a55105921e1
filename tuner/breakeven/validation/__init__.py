"""The model against published measurements: `python -m breakeven.validation`.

published   the data sets, prepared as a user would prepare them
checks      splits, errors and goals
"""
