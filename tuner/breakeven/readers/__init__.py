"""Readers: what others measured, into one typed table of points; wrong files get one line.

columns     the points file's columns: meaning, unit, range
points      a point, checked
pointsfile  CSV with header          guidellm    GuideLLM JSON
vllmbench   `vllm bench serve` JSON   prometheus  responses of Prometheus' HTTP API
reading     any of them, told apart by content; `--where` and `--group-by`
"""
