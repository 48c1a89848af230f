"""Confine a process that runs an app: namespaces, Landlock, a system call filter, limits."""
