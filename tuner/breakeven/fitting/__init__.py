"""From points to a profile: rows in, one law of steps for all arms out.

observations  rows -> others in flight; which rows are left out
arms          one arm's rows, acceptance and lines       one_law   the law of steps of all arms
profiles      a whole file of points -> Profile; starts of engines       fit_warnings  what a reader must know
"""

from breakeven.fitting.profiles import fit_points, with_schedule

__all__ = ["fit_points", "with_schedule"]
