"""A local server with the APIs of the providers of models, which judges what it is sent."""
