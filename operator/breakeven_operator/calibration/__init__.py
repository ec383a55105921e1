"""Measuring a service's arms on pods of our own: pure functions over the observed state of a CalibrationRun.

lifecycle     a run from its first cycle to its last      transition  one cycle's change of a run's status
run_plan      the measurements, fixed at the start        arm_trials  one arm after the other
arm_choices   arms that are chosen from earlier ones      refused_arms   arms that are not started
arms_progress   how far the arms are, as it is written    arm_outcome    an arm's status after a look at its Job
job_following   an arm's Job from its start to its end    trial_reading  an arm's Job and pods among those of its run
podcopy       a pod of ours, copied from the target's     jobs        one Job per arm
trial_state   how far an arm's Job is, or why it failed   conclusion  whether the fit becomes a profile
measurements  points in the status and in files           run_view    what one cycle sees of a run
sending       requests to send, and their file's place    importing   other tools' measurements, as points
schedule_making  a draft length per batch size, from the arms before it
second_start  the arm that would win, by the points so far
dependents    CronJob, ServiceAccount, RoleBinding        display     columns of kubectl meanwhile
"""

from breakeven_operator.calibration.conclusion import conclude
from breakeven_operator.calibration.dependents import cronjob_name, schedule_job, trial_access
from breakeven_operator.calibration.lifecycle import advance, files_read, refused

__all__ = ["advance", "conclude", "cronjob_name", "files_read", "refused", "schedule_job", "trial_access"]
