"""Bind statements to a catalog of event types: resolve all names, check kinds, and return plans.

There is a module for each language: `patterns` for TESLA rules, `requests` for EPS requests, and `queries` for SiddhiQL
queries. `structure` analyses how the events of a statement are ordered and connected.
"""
