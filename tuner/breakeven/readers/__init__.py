"""Readers: what other tools measured, into one typed table of points; wrong files get one line.

guidellm    GuideLLM JSON              vllmbench  `vllm bench serve` JSON
prometheus  responses of Prometheus' HTTP API
reading     a file of any of these formats, recognised by its content; `--where` and `--group-by`
"""
