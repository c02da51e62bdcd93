"""The service over HTTP: `app.create` makes the application, `server.serve` runs it."""
