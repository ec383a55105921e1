"""What to do about one service, decided by pure functions on frozen data; nothing here touches a socket.

workload, fingerprint, arms, target    what the target is, runs, and whether it can be managed
promql, live                           what its pods do now, or the one reason why that is not known
calibrated                             which profile is in force, and whether to measure anew
decide, judge, gates                   which arm should run, and what forbids a roll to it
rollout, confirm                       a roll from intent to proof
report, conditions, wording, material  the status, and whether it is worth a write
announce                               events, and the line of the log
service                                all of it for one service: `reconcile`
"""
