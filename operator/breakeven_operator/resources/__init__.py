"""The three kinds of `breakeven.dev/v1alpha1` as frozen models; the CRDs are generated from them.

    SpeculativeService   a person asks for it: which workload, which ways of speculating, what may be done
    CalibrationRun       one measurement; made by the operator, a CronJob or a person
    SpeculationProfile   an accepted fit; made by the operator

`SpeculativeService.read(object, where)` parses what the API server holds; `.to_json_object()` is its inverse.
"""

from breakeven_operator.resources.base import API_VERSION, Model
from breakeven_operator.resources.calibrationrun import CalibrationRun
from breakeven_operator.resources.servicestatus import SpeculativeServiceStatus
from breakeven_operator.resources.speculationprofile import SpeculationProfile
from breakeven_operator.resources.speculativeservice import SpeculativeService, SpeculativeServiceSpec

__all__ = [
    "API_VERSION",
    "CalibrationRun",
    "Model",
    "SpeculationProfile",
    "SpeculativeService",
    "SpeculativeServiceSpec",
    "SpeculativeServiceStatus",
]
