"""What tests share: raw clients, processes, receivers."""
