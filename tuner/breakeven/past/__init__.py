"""A workload's past at a Prometheus as operating points: cut into windows, sorted by arm, clustered by time, and judged.

Nothing here knows a socket: whoever calls hands over a function that asks. The way is `past_reading`, which asks, and says what the past cannot;
`courses`, what each pod counted; `pod_facts`, what each pod was; `steady`, the windows that count; `clustering`, the points.
`receipts`, `receipt_reading` and `receipt_table` say what speculation saved, of the operator's own series.
"""
