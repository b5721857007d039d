"""The simulator: the same core on a virtual clock, a zoo of models, and clusters to run them on."""

from legato.sim.cluster import Architecture, Background, Cluster, Group, Ownership
from legato.sim.simulation import Result, Simulation, simulate

__all__ = ["Architecture", "Background", "Cluster", "Group", "Ownership", "Result", "Simulation", "simulate"]
