"""Evaluate queries whose range moves with an object (MCEP), on brokers that hold events by location.

`brokers` stores events by cell and streams them to operators, `operator_node` runs an operator of a query, `consumer`
runs the root of a query, and `ranges` computes the times from which each range needs events.
"""
