"""The model against published measurements: `python -m validation`.

published   the data sets, prepared as a user would prepare them
checks      latency at loads and draft lengths that were left out
accepted    tokens per step at other draft lengths
simulated   how often bounds hold a known truth
outcomes    a line of the table: errors and goals
"""
