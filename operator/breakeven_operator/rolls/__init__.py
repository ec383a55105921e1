"""A change of arm from intent to its last replica, its measurement, and its undoing: pure functions on a `RolloutContext`.

under_way        what goes on this cycle           rollout        intent, roll, undoing
annotation_owner who owns the annotation           barred_arms    arms that are left, and not entered again
roll_evidence    whether a roll gained or lost     roll_failures  whether it fails requests or shortens answers
"""
