"""Other engines on the workloads of this project, each in a process and an environment of its own."""
