"""Serve rules over HTTP: clients publish events, deploy rules, and get matches as pages, streams and webhooks.

    log ◄─ group commit ◄─ publish, deploy       the log holds all inputs of detection
     └─► detection ─► matches ─► pages, server-sent events, webhooks

One thread reads the log and detects. It numbers the matches and writes them to disk before they are delivered. It also
saves its state periodically. Matches and state are stored with the log position up to which they were computed. So a
crash loses no acknowledged request, and no match is stored twice.
"""
