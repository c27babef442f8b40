"""A leaf: process trees, pidfd and /proc, shared by the supervisor and the service's own host."""
