"""Chunks: the parts of a result, an input or an attachment, and their flow control."""
