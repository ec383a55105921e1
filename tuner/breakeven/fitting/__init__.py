"""From points to a profile; formula, solver, uncertainty and diagnostics are separate.

observations  rows -> others in flight; which rows are left out
solve         nonnegative least squares of relative residuals
uncertainty   noise, covariance, Student bounds
diagnostics   bad points, bends, left-out loads: reasons not to believe a fit
arms          one arm's rows, its line       one_law  the law of steps of all arms
pooled        all draft lengths of one method, as in the paper
law_of_points all rows -> the law of steps       law_findings  findings by that law alone
fit_warnings  what a reader must know            profiles      a whole file of points -> Profile
"""

from breakeven.fitting.profiles import fit_points, with_law, with_schedule

__all__ = ["fit_points", "with_law", "with_schedule"]
