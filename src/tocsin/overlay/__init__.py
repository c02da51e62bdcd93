"""How do processors agree? State machines without I/O, clock or chance: their host carries messages.

Moving ranges (MCEP): `collecting` is a query's side, `cells` that of the brokers which hold events by place.
"""
