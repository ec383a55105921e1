"""The operator on a real control plane, as its chart installs it: what the cluster tests of its behaviour stand on.

engine      the simulated vLLM that all targets run: its costs, its true law, and a profile that says so
manifests   targets and services with short intervals
stage       the cluster with the operator; a namespace per test; what a person would look at
api_proxy   in front of the API server: it cuts, holds back, repeats and refuses
administrator  the API server without kubectl
traffic     users of a target
posing      a metrics page under a test's control, scraped by the real Prometheus
page_server who hangs up in the middle of a page is no error of it
replaying   a cache in front of Prometheus that gets stuck
waiting     until something holds
"""
