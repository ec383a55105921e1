"""What to do about one service, decided by pure functions on frozen data; nothing here touches a socket.

workload, fingerprint, arms, target    what the target is, runs, and whether it can be managed
promql, live                           what its pods do now, or the one reason why that is not known
calibrated                             which profile is in force, and whether to measure anew
decide, gates, rollout, confirm        which arm should run, what forbids a roll, and a roll from intent to proof
report, conditions, wording, material  the status, and whether it is worth a write
service                                all of it for one service: `reconcile`
"""
