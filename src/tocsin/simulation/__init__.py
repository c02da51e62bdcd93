"""Simulate sites in virtual time, and check their matches against the matches of all events at one place.

`network` carries messages between processors, and `runs` measures a strategy. `scenarios` reads scenarios, and
`workloads` generates them from a seed. `replicated` runs replicas while faults happen. `city` simulates moving queries.
"""
