"""One module per outside system. Each translates that system's errors into ours at its own line."""
