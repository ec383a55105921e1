"""Whether a prediction is an extrapolation: the profile says what was measured, and the limit of utilisation is here."""

from __future__ import annotations

from breakeven.profile import Prediction

TRUSTED_UTILISATION = 0.75
"""Beyond this share of saturation the open-loop form amplifies a 10 % error to 50 %."""


def extrapolated(
    prediction: Prediction, max_utilisation: float = TRUSTED_UTILISATION, *, open_loop: bool = True
) -> bool:
    """Whether a prediction is an extrapolation, on which no decision may rest.

    Args:
        prediction: of one arm at one load.
        max_utilisation: highest utilisation of an open loop at which predictions count.
        open_loop: a closed loop imposes its number in flight, so nothing amplifies an error of the law there.
    """
    near_saturation = open_loop and prediction.utilisation > max_utilisation
    return prediction.saturated or prediction.outside_measured or near_saturation
