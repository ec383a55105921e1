"""Readers: what other tools measured, into one typed table of points; wrong files get one line.

guidellm    GuideLLM JSON              vllmbench  `vllm bench serve` JSON
prometheus  responses of Prometheus' HTTP API
reading     any of them or a points file, told apart by content; `--where` and `--group-by`
"""
