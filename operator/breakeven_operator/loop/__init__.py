"""When cycles run, and what one does: its stages, which services it decides about, and what it says.

pace      timer, wake-ups, the Lease    cycle              the stages    agenda             services that are due
run_turns runs that may go on           service_decisions  decisions     watching           annotated workloads
cycle_log log and metrics               housekeeping       own objects   assembly           which adapter plays which port
"""
