"""When cycles run, and what one does: its stages, which services it decides about, and what it says.

pace      timer, wake-ups, the Lease    cycle              the stages    agenda             services that are due
admission runs that may go on           service_decisions  decisions     run_turns          calibrations
cycle_log log and metrics               housekeeping       own objects   watching           annotated workloads
assembly  which adapter plays which port
"""
