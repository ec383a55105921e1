"""Readers: measurements of other tools, read into one typed table of points. A wrong file gets one line.

guidellm    GuideLLM JSON              vllmbench  `vllm bench serve` JSON
prometheus  samples of Prometheus' answers
reading     a file of any of these formats, recognised by its content; `--where` and `--group-by`
"""
