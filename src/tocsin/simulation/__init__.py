"""Sites under virtual time: topologies, workloads, a network that carries messages, and checks against the reference.

`network` runs processors, `scenarios` says what they are given, `topologies` and `workloads` make that up from a seed.
"""
