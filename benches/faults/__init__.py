"""What the runs under faults share: numbered samples, groups that can be checked, a proxy that cuts connections."""
