"""`make real`: the operator and a vLLM that nobody here wrote, on this machine."""
