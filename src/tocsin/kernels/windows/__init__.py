"""Kernels for SiddhiQL windows, joins and aggregates, and the loop that runs queries and their timers."""
