"""Code that tests share: raw clients, processes, fixtures."""
