"""The documents for users: their pages, their fenced blocks, a reader who types them."""
