"""The websocket server: sessions, HTTP endpoints, draining."""
