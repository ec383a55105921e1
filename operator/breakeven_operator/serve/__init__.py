"""What the operator's process shows of itself: web page, health, metrics, log lines."""
