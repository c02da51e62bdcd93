"""Processors at many sites that find the matches of one set of rules (T-Rex deployment strategies).

    sources ─► processor ─► processor ─► … ─► root of a processing tree ─► sinks

A `Processor` is a state machine without I/O, clock or randomness. Its host passes messages to `receive` and sends the
contents of `outbox`. A processor knows only its neighbours, and has a `TreeNode` in each processing tree.

`strategies` has the deployment strategies, `deployment` derives what each node evaluates, `replicas` runs processors as
groups of replicas, and `mobility` has the queries whose range moves (MCEP).
"""
