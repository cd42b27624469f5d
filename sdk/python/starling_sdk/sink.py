"""Sinks: they receive a run's figures."""

import grpc

from . import starling_plugin_pb2 as pb
from . import starling_plugin_pb2_grpc as rpc
from .manifest import Plugin, told, values


class Run:
    """What a sink is told about a run: settings, a dict; folder, of the run, absolute, in which the sink's files belong; recipe; step, that the run goes on from."""

    def __init__(self, settings, folder, recipe="", step=0):
        self.settings, self.folder, self.recipe, self.step = settings, folder, recipe, step


class Record:
    """The figures of one moment: kind ("step", "eval", "epoch"), step, time in seconds since 1970, values, a dict of floats."""

    def __init__(self, kind, step, values, time=0.0):
        self.kind, self.step, self.values, self.time = kind, step, values, time


class Sink(Plugin):
    """Receives a run's figures. Calls come one at a time, on rank 0 only."""

    def open(self, run):
        """Begins a run. After a resume it is called again: figures of steps after run.step will come again and replace those that are there."""
        raise NotImplementedError

    def write(self, records):
        """Receives figures in order of time."""
        raise NotImplementedError

    def close(self):
        """Ends the run. What was written must be on disk when it returns."""
        raise NotImplementedError


class Servicer(rpc.SinkServicer):
    def __init__(self, sink):
        self.sink = sink

    def Open(self, request, context):
        try:
            self.sink.open(Run(values(request.settings), request.folder, request.recipe, request.step))
        except Exception as e:
            context.abort(grpc.StatusCode.ABORTED, told("Open", e))
        return pb.OpenResponse()

    def Write(self, request, context):
        try:
            self.sink.write([Record(r.kind, r.step, dict(r.values), r.time) for r in request.records])
        except Exception as e:
            context.abort(grpc.StatusCode.ABORTED, told("Write", e))
        return pb.WriteResponse()

    def Close(self, request, context):
        try:
            self.sink.close()
        except Exception as e:
            context.abort(grpc.StatusCode.ABORTED, told("Close", e))
        return pb.CloseResponse()
