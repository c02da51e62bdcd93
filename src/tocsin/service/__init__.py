"""Rules as a service: events in over HTTP, durable before the answer; matches out by paging, streams and webhooks.

    log ◄─ committer ◄─ publish, deploy          everything that detection depends on is a record of the log
     └─► detection ─► matches ─► paging, server-sent events, webhooks

One thread reads the log and detects. What it finds is numbered and written down before anyone is told, with the
position in the log that it was found at; its state is saved now and then, with the position that it was saved at. So a
crash at any point loses nothing that was answered and tells nothing twice.
"""
