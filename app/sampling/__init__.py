"""What a host and its cards do: NVML, a simulated card, /proc. A leaf, used by the agent: light to import."""
