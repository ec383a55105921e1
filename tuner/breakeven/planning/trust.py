"""Whether a prediction is an extrapolation: the profile says what was measured, and the limit of utilisation is here."""

from __future__ import annotations

from breakeven.profile import Prediction

TRUSTED_UTILISATION = 0.75
"""Beyond this share of saturation the open-loop form amplifies a 10 % error to 50 %."""


def extrapolated(prediction: Prediction, *, open_loop: bool) -> bool:
    """Whether a prediction is an extrapolation, on which no decision may rest.

    A closed loop imposes its number in flight, so nothing amplifies an error of the law there.
    """
    near_saturation = open_loop and prediction.utilisation > TRUSTED_UTILISATION
    return prediction.saturated or prediction.outside_measured or near_saturation
