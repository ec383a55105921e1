"""The only sockets of the operator: the Kubernetes API, Prometheus, the Lease, and the child process of the fit. The only writer too."""
