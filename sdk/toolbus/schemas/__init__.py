"""JSON Schemas of tools: validation, bounds, forms for providers and the way back, texts."""
