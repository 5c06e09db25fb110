"""Programs in their own processes: servers, hosts, clients, commands."""
