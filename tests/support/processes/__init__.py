"""Programs as processes of their own: servers, hosts, clients, commands."""
