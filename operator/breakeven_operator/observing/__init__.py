"""What Prometheus says of one service, read: present figures, or the one reason why there are none; its past; its users' latencies.

fleet_query      what is asked about a fleet             live_metrics  its pods now
latency_metrics  what its users wait for                 objectives    whether that was promised
past_metrics     loads that are expected again, and what the past says before the first calibration
roll_metrics     blocks of time of both arms, and how bursty arrivals are
questions        figures and policy in the library's types
"""
