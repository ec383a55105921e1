"""How the operator's process is watched: health, metrics, log lines, and the server of the first two."""
