"""A leaf: who a process is, which belong to a job, and how all of them are ended. Linux, standard library only."""
