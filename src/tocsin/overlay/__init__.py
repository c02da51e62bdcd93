"""How do processors at many sites find the matches of one set of rules? (T-Rex deployment strategies)

    sources ─► processor ─► processor ─► … ─► root of a processing tree ─► sinks

A `Processor` is a state machine without I/O, clock or chance: its host hands it messages and carries what it puts into
its outbox. It knows its neighbours only. In each tree it has a `Membership`: a father, children, what they advertise,
and what it has been asked to decide. `deployment` says what follows from that, `strategies` which trees there are and
what goes down them.

Queries whose range moves (MCEP): `collecting` is a query's side, `cells` that of the brokers which hold events by
place,
`delivery` puts in order what they bring, `ranges` says from when on they must begin.
"""
