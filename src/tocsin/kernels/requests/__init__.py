"""Kernels for requests for notification. They search for combinations of events and run operators in Snoop's
contexts."""
