"""Seconds and CPU seconds of the tests: a pytest plugin that reads them, reports, and the stages of `make test`."""
