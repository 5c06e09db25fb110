"""Tools and toolkits: signatures, schemas, validation, context, streams."""
