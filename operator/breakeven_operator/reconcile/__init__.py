"""Decides about one service by pure functions on frozen data; nothing here touches a socket.

observation, service               what is known of one service; all that is decided about it: `reconcile`
target, refused_target             whether the target can be managed, and the short way if it cannot
case, case_reading                 the service as it was read: the input of everything that is decided about it
fleet_query, pod_figures, live_metrics, present_figures  what its pods do now, or the one reason why that is unknown
arrival_metrics, latency_metrics   how bursty its arrivals are, and what its users wait for
past_metrics                       which loads are expected again
active_profile, profile_in_force   which profile is in force
known_runs, due_run                runs that ended or go on, and whether to measure again
measured_schedules, carried        schedules that were measured, and loads that the running arm is seen to answer
suspicion, doubts, drift           what measurements and live text say against that profile
model_account, model_report        measured over predicted latency, window by window
first_cause                        why the arm in place does not pay
questions, decide                  the library is asked, in its own types
judge, orders, verdict             which arm should run; a person's order outranks the figures
gates, preconditions               what forbids a roll to it, as one ordered table
barred_arms, leaving, outage       arms that failed, arms that are left, and when an outage is allowed
roll_beginning, under_way, steps, rollout  a change from intent to its last replica
roll_evidence, roll_metrics, roll_failures, roll_windows  what a roll is measured by
verification, roll_outcome, roll_lessons, lost_rolls  the word for it, what it teaches, and a roll that lost
annotation_owner, annotation_conflict  who owns the annotation, taking over and handing back
objectives, scaling, paying        what is said beside the arm: objectives, replicas, profit
cycle_facts, action_plan           what the cycle found, and the actions that follow from it
status_report, target_report, service_display, conditions, formatting  the status
cycle_aspects, metrics_aspect, doubt_aspects  its conditions as sentences
status_diff, unwritten             whether the status is worth a write, and what is kept until then
events, failed                     events and the line of the log; what a defect leaves behind
"""
