"""The fitted artefact: what was measured, the laws, and predictions from them; numpy only.

fits          what a fit says about an arm or a method
curves        latency against load: law, or points where the law bends
conditions    other acceptance and lengths than measured
pooling       arms that were not measured
predictions   one arm at one load          comparisons   one arm against another
document      the profile: JSON in and out, `predict`, `compare`
"""

from breakeven.laws.law import Law
from breakeven.profile.comparisons import Comparison, speedups_at_rps
from breakeven.profile.curves import Curve
from breakeven.profile.document import SCHEMA, Profile
from breakeven.profile.fits import ArmFit, Bounds, LawFit, PooledFit
from breakeven.profile.operating_conditions import Conditions
from breakeven.profile.predictions import LoadPoint, Prediction

__all__ = [
    "SCHEMA",
    "ArmFit",
    "Bounds",
    "Comparison",
    "Conditions",
    "Curve",
    "Law",
    "LawFit",
    "LoadPoint",
    "PooledFit",
    "Prediction",
    "Profile",
    "speedups_at_rps",
]
