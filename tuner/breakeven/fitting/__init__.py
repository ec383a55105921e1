"""From points to a profile: rows in, one law of steps for all arms out.

observations  rows -> others in flight; which rows are left out
side_lines    lines of TTFT, TPOT and quantiles; bad rows
arms          one arm's rows and acceptance           one_law   the law of steps of all arms
engine_starts  that law over starts of engines        profiles  a whole file of points -> Profile
fit_warnings  what a reader must know
"""

from breakeven.fitting.profiles import fit_points, with_schedule

__all__ = ["fit_points", "with_schedule"]
