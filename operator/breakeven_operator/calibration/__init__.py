"""Measuring a service's arms on pods of our own: pure functions over the observed state of a CalibrationRun.

lifecycle        a run from its first cycle to its last, and imports  transition  a run and its points as one cycle sees and changes them
active_profile   the profile in force, and runs that are due  run_plan      the measurements, fixed at the start
arm_trials       one arm after the other, as it is written  conclusion     whether the fit becomes a profile
jobs             one Job per arm, account and CronJob       podcopy         a pod of ours, copied from the target's
trial_state      how far an arm's Job is, or why it failed  schedule_making a draft length per batch size
sending          requests to send, and their file's place   answer_secrets  answers of an arm until they are judged
upgrade_gate     one arm on two images at once, in place of all others
"""

from breakeven_operator.calibration.conclusion import conclude, not_concluded
from breakeven_operator.calibration.jobs import made_name, schedule_job, trial_access
from breakeven_operator.calibration.lifecycle import advance, files_read, refused

__all__ = [
    "advance",
    "conclude",
    "files_read",
    "made_name",
    "not_concluded",
    "refused",
    "schedule_job",
    "trial_access",
]
