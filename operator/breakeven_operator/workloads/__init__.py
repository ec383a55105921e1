"""What a target is, as one frozen `Workload` per service and cycle; pure functions over the API's objects.

workload_kind                what is particular to a kind; one file for each of them, and `known`, their table
target_template              the pod template and its engine, read once
fingerprint, running_arm     what a measurement belongs to, and which arm the template asks for
workload                     all of it, with its pods
devices, presence, trouble   a pod's devices, whether it exists, why it does not come
object_facts                 owners, conditions and times of any object
"""
