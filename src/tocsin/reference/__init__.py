"""The reference semantics of all rule languages, as short and slow Python.

Every other way of running rules must give the same answers. The engine and the reference share nothing but the syntax
of rules and the ids of events.
"""
