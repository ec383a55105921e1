"""`kubectl breakeven`: a service's state in words, and the few changes that people make to it.

plugin_commands                verbs, their options, and the changes that they make
kubectl_process                the `kubectl` of the user as a child process: JSON in, JSON out; where the board is
service_table, explanation     texts of what a status says
wanted_arm                     the recommended arm as a patch of the target
examined                       arguments of `breakeven doctor` about a service
alert_course                   rules of the chart that hold by a status; the board asks here too
service_view                   one SpeculativeService as its JSON, frozen

Credentials, contexts and rights come from kubectl; no other Kubernetes client is imported, and no numpy: what needs it
is asked of the command `breakeven`.
"""
