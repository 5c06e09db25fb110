"""Records of calls: who called which tool for whom, how long it took, and how it ended."""
