"""Run an app in a confined, long-lived process: the daemon's side and the process' own."""
