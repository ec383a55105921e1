"""Decides about one service by pure functions on frozen data; nothing here touches a socket.

target                                         whether the target can be managed; what it is stands in `workloads`
fleet_query, live_metrics                      what its pods do now, or the one reason why that is unknown
arrival_metrics                                how bursty its arrivals are
past_metrics                                   which loads are expected again
active_profile, carried                        which profile is in force, and whether to measure again
decide, judge, verdict, preconditions          which arm should run, and what forbids a roll to it
steps, rollout, verification                   a roll from intent to proof
annotation_owner                               who owns the annotation, taking over and handing back
status_report, conditions, formatting, status_diff  the status, and whether it is worth a write
events, failed                                 events and the line of the log; what a defect leaves behind
observation, service                           all of it for one service: `reconcile`
"""
