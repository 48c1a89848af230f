"""Let an app's own ServerApp drive a job: its main runs unchanged, in a confined process."""
