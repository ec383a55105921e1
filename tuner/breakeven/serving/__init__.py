"""Reads from a pod template how a vLLM server is started, speculates and stops; no cluster needed."""
