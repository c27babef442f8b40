"""What the commands do: words in, calls to the service or to pure functions, tables and text out."""
