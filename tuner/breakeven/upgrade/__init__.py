"""Whether speculation still works in another version of an engine: what both showed, the comparison, and the trial.

The way is `record`, what one engine showed and the words; `comparison`, the word for a pair of records, pure; `service_fields`, the
requests that a service may send; `against_profile`, a profile in place of the first engine; `trial`, which asks both engines.
"""
