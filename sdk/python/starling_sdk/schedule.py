"""Schedules: how the learning rate goes."""

import grpc

from . import starling_plugin_pb2 as pb
from . import starling_plugin_pb2_grpc as rpc
from .manifest import Plugin, told, values


class Schedule(Plugin):
    """Gives learning rates.

    The runtime asks before the run begins, on every rank, and the ranks compare the answers: the same settings must give the same bits in
    every process. math.exp, pow, cos and the like come from the machine's C library and differ from one to the next; + - * / and math.sqrt do not.
    """

    def begin(self, settings, total):
        """Called before the first rate, and again before others with other settings, with a dict of the recipe's settings and the number of steps
        that the schedule is made for. Raises Refused for settings that do not go together."""
        raise NotImplementedError

    def rate(self, step):
        """The learning rate of a step, from 0: a float, finite and not below 0."""
        raise NotImplementedError


class Servicer(rpc.ScheduleServicer):
    def __init__(self, schedule):
        self.schedule = schedule

    def Rates(self, request, context):
        try:
            self.schedule.begin(values(request.settings), request.total)
            return pb.RatesResponse(rates=[self.schedule.rate(step) for step in range(request.first, request.last)])
        except Exception as e:
            context.abort(grpc.StatusCode.ABORTED, told("the schedule", e))
