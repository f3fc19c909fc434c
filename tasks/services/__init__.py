"""What changes the world of tasks, by duty: sync, assigning, leases, fixes, agents."""
