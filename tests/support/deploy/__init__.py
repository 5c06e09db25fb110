"""What `deploy/` describes, as processes of this machine."""
