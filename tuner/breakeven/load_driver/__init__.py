"""Measure one running engine: which loads, for how long, and what each of them says.

    loads      when the requests of a load are sent                                  pure
    workload   what one request asks for                                             pure
    lengths    how long prompts and answers are                                      pure
    dataset    the user's own requests, read from a file
    sampling   how the engine draws its tokens                                       pure
    records    what happened to one request                                          pure
    counters   /metrics pages -> tokens per step, acceptance, preemptions            pure
    window     records of a steady window -> means, quantiles, in-flight, precision  pure
    measured_window  both sides of one load -> a point with its flags                pure
    design     which load to measure next, and when to stop                          pure
    question   what a calibration is to decide, and what its points say so far       pure
    beliefs    what points tell of the laws of several arms                          pure
    regret     what it may cost not to know better                                   pure
    next_point which point saves most of that per second                             pure
    course     loads spread evenly or bought: one arm's sweep, step by step          pure
    client     the only socket: streamed completions and the metrics page
    measuring  one operating point under a steady load
    sweep      design and measuring in a loop: resumable, budgeted, reporting

The driver is part of what is measured (it may share a node with the engine), so it is one small open-loop client
that reports its own send lag; points with too much of it are flagged, never silently kept.
"""
