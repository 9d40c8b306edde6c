"""Worker processes, how they end and what replaces them."""
