"""Measuring a service's arms on pods of our own: pure functions over what is seen of a CalibrationRun.

planning      what is measured, fixed at the start        podcopy    the target's pod template as ours
jobs          one Job per arm                             schedule   CronJob, ServiceAccount, RoleBinding
podstatus, diagnosis   what became of a Job               trials     one arm after the other
machine       a run's life, cycle by cycle                conclusion the fit's gate, and the profile
measurements  points in the status and in files           display    what kubectl prints meanwhile
"""

from breakeven_operator.calibration.conclusion import conclude
from breakeven_operator.calibration.lifecycle import advance
from breakeven_operator.calibration.schedule import cronjob_name, schedule_job, trial_access

__all__ = ["advance", "conclude", "cronjob_name", "schedule_job", "trial_access"]
