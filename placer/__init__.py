"""The core of Placer: graphs, devices, groupings, simulation, policies and trainers."""
