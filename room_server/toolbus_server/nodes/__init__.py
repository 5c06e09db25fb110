"""Many nodes as one bus, over Redis; NODES.md says how. A server without `--redis` needs none."""
