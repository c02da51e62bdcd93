"""Run the families of rules that keep their own state: requests, window queries, sequences and projections.

`request_tables` and `window_tables` compile these rules. The other modules run the rules and save their state.
"""
