"""What a start needs, looked at by ``doctor`` and by ``run`` alike: machine, disk, ports, and who is to be reached."""
