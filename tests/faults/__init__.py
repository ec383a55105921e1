"""A hostile world as a table: each row a real run on a real control plane, printed by `make test-faults`.

client      users of a target who count their own losses: not the demo's, nor the load driver's
table       the row of a fault: promised and seen, requests lost, unwanted writes, time to recover
unreliable  a proxy in front of the real Prometheus that is down, slow, empty, stuck or lying
conftest    the stage with that proxy; a row per test; the table at the end
"""
