"""Single parts without a server: routers, hosts and transports, on clocks of their own."""
