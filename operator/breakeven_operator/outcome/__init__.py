"""From the facts of a cycle to what people, restarts and the writer read.

status_report  the status, its conditions and columns    formatting   figures and verdicts as people read them
worth          what speculation saved and cost           action_plan  actions, events, the log's line, writes worth making
"""
