"""Plan the detection of rules: bind rules to event types, build their operator graph, and estimate its cost.

Other modules find partition keys, assign rules to slots, and split rules into partial rules.
"""
