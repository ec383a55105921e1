"""How a vLLM server is started, told to speculate and stopped, read from a pod template; no cluster needed."""
