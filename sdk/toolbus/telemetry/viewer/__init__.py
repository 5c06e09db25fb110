"""The receiving end of OTLP: `toolbus trace` stores spans and prints call trees."""
