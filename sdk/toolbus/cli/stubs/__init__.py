"""Type stubs of toolkits: Python source made from manifests, which are untrusted."""
