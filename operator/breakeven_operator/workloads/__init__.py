"""What a target is, as one frozen `Workload` per service and cycle; pure functions over the API's objects.

workload_kind                what is particular to a kind; one file for each of them, and `known`, their table
served_engine                the engine's container of the pod template, read once
fingerprint, running_arm     what a measurement belongs to, and which arm the template asks for
workload                     all of it, with its pods
devices, presence, trouble   a pod's devices, whether it exists, why it does not come
object_facts                 owners, conditions and times of any object
"""
