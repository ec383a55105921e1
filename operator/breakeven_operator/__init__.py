"""The Kubernetes operator: observes a vLLM fleet, asks the library, rolls what pays."""
