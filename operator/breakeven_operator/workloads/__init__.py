"""The target of a service, as one frozen `Workload` per cycle; pure functions over the API's objects.

workload_kind, known         facts that differ between kinds; the kinds that are rolled, and their table
other_kinds                  workloads of all other kinds, put together from their pods
served_engine                the engine's container of the pod template, read once
fingerprint, running_arm     what a measurement belongs to, and which arm the template asks for
workload                     all of it, with its pods
target                       whether the target can be managed, and rolled
object_facts                 owners, conditions and times of any object; whether a pod exists, and why it does not come
"""
