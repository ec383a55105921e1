"""The fitted artefact: what was measured, the laws, and predictions from them; numpy only.

fits          results of a fit for an arm or a method
step_fit      the law of steps as it was fitted         step_form     departures of engines from it
step_curves   an arm's curve, read off the law          curves        latency against load, with its doubt
predictions   one arm at one load                       comparisons   one arm against another
credit        an arm that carries more than by its law         student_t     the quantiles that bounds need
operating_conditions   other acceptance, lengths and arrivals than measured
document      the profile: JSON in and out, `predict`, `compare`; `document_checks` refuses impossible ones
"""

from breakeven.profile.comparisons import Comparison, speedups_at_rps
from breakeven.profile.curves import Curve
from breakeven.profile.document import Profile
from breakeven.profile.fits import ArmFit, Bounds, LineFit
from breakeven.profile.operating_conditions import Conditions
from breakeven.profile.predictions import LoadPoint, Prediction

__all__ = [
    "ArmFit",
    "Bounds",
    "Comparison",
    "Conditions",
    "Curve",
    "LineFit",
    "LoadPoint",
    "Prediction",
    "Profile",
    "speedups_at_rps",
]
