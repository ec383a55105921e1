"""The node agent: Kubernetes nodes whose pods are local processes ("process kubelet").

A kubelet needs root, cgroups and a container runtime. This package does a kubelet's work with none of them. It registers
Node objects, keeps their Leases, and runs every pod that the scheduler binds to them as processes on this machine. Each
pod has an address of its own in 127.0.0.0/8. Pod status, events and logs are reported as a kubelet does. The README
beside this file lists the fields that are honoured and those that are refused.

Layers, each knowing only those below it:

* decisions on frozen data, no input or output: `podspec`, `variables`, `quantities`, `fieldrefs`, `environment`, `images`,
  `gpus`, `refusals`, `states`, `backoff`, `thresholds`, `pod_lifecycle`, `status`, `mounts`, `payloads`, `rewriting`, `nodeobjects`;
* one kind of input or output each: `api_access`, `api_client`, `objects`, `event_recorder`, `atomicfiles`, `addresses`, `processes`
  (with `launcher`, the program that becomes the container), `rootfiles`, `sandbox`, `container_actions`, `isolation`;
* objects that live for a while: `probing`, `container`, `volumes`, `podworker`, `node`, `kubeletapi`;
* the process: `agent`, `commandline`, `warden`, `__main__`.
"""
