"""The prior: ratios of arms that were never run, from public measurements, and whether measuring them is worth it.

The way is `public_table`, which reads rows; `row_likeness`, how much two rows have in common; `expected_ratios`, the distribution
of ratios; `calibration_worth`, break-evens, gains and cost. Nothing here decides a roll.
"""
