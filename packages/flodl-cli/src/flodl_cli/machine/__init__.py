"""What this machine has: GPUs, drivers, Pythons, and which build of torch runs on them."""
