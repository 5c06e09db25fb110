"""Single parts without a server: routers, hosts and transports, with clocks of the test."""
