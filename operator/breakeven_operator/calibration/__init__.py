"""Measuring a service's arms on pods of our own: pure functions over the observed state of a CalibrationRun.

lifecycle        a run from its first cycle to its last     transition      one cycle's change of a run's status
run_beginning    what a run waits for, and its start        run_plan        the measurements, fixed at the start
run_view         what one cycle sees of a run               display         columns of kubectl meanwhile
arm_trials       one arm after the other                    refused_arms    arms that are not started
arms_progress    how far the arms are, as it is written     arm_choices     arms that are chosen from earlier ones
job_following    an arm's Job from its start to its end     trial_reading   an arm's Job and pods in its run
jobs             one Job per arm                            podcopy         a pod of ours, copied from the target's
trial_state      how far an arm's Job is, or why it failed  arm_outcome     an arm's status after a look at its Job
sending          requests to send, and their file's place   answer_secrets  answers of an arm until they are judged
measurements     points in the status and in files          importing       other tools' measurements, as points
schedule_making  a draft length per batch size              second_start    the arm that would win, by its points
conclusion       whether the fit becomes a profile          arm_finding     an arm of the fit, as a profile shows it
dependents       CronJob, ServiceAccount, RoleBinding
"""

from breakeven_operator.calibration.conclusion import conclude, not_concluded
from breakeven_operator.calibration.dependents import cronjob_name, schedule_job, trial_access
from breakeven_operator.calibration.lifecycle import advance, refused
from breakeven_operator.calibration.run_beginning import files_read

__all__ = [
    "advance",
    "conclude",
    "cronjob_name",
    "files_read",
    "not_concluded",
    "refused",
    "schedule_job",
    "trial_access",
]
