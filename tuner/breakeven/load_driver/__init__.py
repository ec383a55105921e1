"""Measures the engines that are up: which loads, for how long, and the point that follows from each.

    sent_workload  prompt and output length of each request                          pure
    lengths    distributions of prompt and output lengths                            pure
    dataset    the user's own requests, read from a file
    counters   /metrics pages -> tokens per step, acceptance, preemptions            pure
    window     records of requests -> means, quantiles, in-flight, precision         pure
    design     which load to measure next, and when to stop                          pure
    question   the decision behind a calibration, and the belief about its arms      pure
    next_point the point that saves most expected loss per second                    pure
    course     a sweep: all arms at one load before the next, spread or bought      pure
    client     the only socket: streamed completions and the metrics page
    measuring  one operating point under a steady load
    sweep      a sweep in a loop: resumable, budgeted, reporting; pairs at its end
    asking     the requests of the answer gate

The driver influences the measurement, because it may share a node with the engine. So it is one small open-loop
client that reports its own send lag. Points with too much lag are flagged, never silently kept.
"""
