"""The scheduling core: events and the time come in, commands go out. It knows no socket, thread or clock."""

from legato.core.part import Part, Stage
from legato.core.plan import Plan
from legato.core.policy import Policy
from legato.core.scheduler import Command, Complete, Event, Finished, Ready, Replan, Scheduler, Sent, Start
from legato.core.task import Task, Tensor
from legato.core.workload import Layer, Timing, Workload, bound

__all__ = [
    "Command",
    "Complete",
    "Event",
    "Finished",
    "Layer",
    "Part",
    "Plan",
    "Policy",
    "Ready",
    "Replan",
    "Scheduler",
    "Sent",
    "Stage",
    "Start",
    "Task",
    "Tensor",
    "Timing",
    "Workload",
    "bound",
]
