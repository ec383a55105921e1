"""The model against published measurements: `python -m validation`.

published   the data sets, prepared as a user would prepare them
checks      latency at loads and draft lengths that were left out
accepted    tokens per step at other draft lengths
simulated   coverage of bounds, with a known truth
bought_design   worth of the points that calibration buys, on engines of its own (design_engines)
outcomes    a line of the table: errors and goals

Measurements of others (`breakeven.prior`):

published_cells.csv   figures of others, each with its address
measured_ratios       the library's table, derived from them
adaptive_sweeps       those with adaptive verification: its law, from two loads

The laws side by side on a second engine, in a table of their own (`python -m validation.law_table`):

second_engine   the engine, event by event        step_clocks   durations of its steps
judged_engines  machines and workloads            truths        their true figures, kept in files
law_door        questions that a law answers      law_trials    its trials
"""
