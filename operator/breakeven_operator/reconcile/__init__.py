"""Decides about one service by pure functions on frozen data; nothing here touches a socket.

service                            all that is decided about one service in a cycle: `reconcile`, from the top
case                               what surrounds a service, the service as it was read, and what the cycle found
target                             whether the target can be managed
fleet_query, pod_figures, live_metrics  what its pods do now, or the one reason why that is unknown
latency_metrics, objectives        what its users wait for, and whether that was promised
past_metrics, first_answer         which loads are expected again; what the past says before the first calibration
active_profile, calibration_state  which profile is in force, runs that ended or go on, and whether to measure again
model_account, doubts              what measurements and live text say against that profile
questions, judge, verdict          the library is asked, in its own types, which arm should run; whether speculation pays
gates, barred_arms                 what forbids a roll to it, as one ordered table; arms that are left
under_way, steps, rollout, annotation_owner  a change from intent to its last replica; who owns the annotation
roll_metrics, roll_evidence, roll_failures  what a roll is measured by, and the word for it
scaling, worth                     what is said beside the arm: replicas and profit
action_plan                        the actions that follow from a cycle, events, the line of the log, writes worth making
status_report, conditions    the status
"""
