"""What an optimizer plugin for Starling is written with in Python. It needs numpy, grpcio and protobuf, of the versions in requirements.txt.

    import numpy as np
    import starling_sdk as sdk

    class SGD(sdk.Optimizer):
        manifest = sdk.Manifest("my-sgd", "1.0.0", hypers=[sdk.Float("momentum", 0.9, least=0, below=1)], state=[sdk.State("m")])

        def setup(self, hypers):
            self.momentum = np.float32(hypers["momentum"])

        def step(self, t):
            m = t.state["m"]
            m *= self.momentum
            m += t.grad
            t.param -= np.float32(t.rate) * m

    sdk.serve(SGD())

The runtime owns parameters and state. step changes t.param and t.state in place and must remember nothing: the process may be killed
between any two calls, and the step is then run again.
"""

import ctypes
import json
import mmap
import os
import platform
import re
import sys
import threading
import time
import traceback
from concurrent import futures

import grpc
import numpy as np

from . import starling_plugin_pb2 as pb
from . import starling_plugin_pb2_grpc as rpc

_COOKIE = ("STARLING_PLUGIN", "served-to-a-rank")
_PROTOCOL = 1


class Hyper:
    """A hyper-parameter. least, most and below bound numbers; choices lists what a string may be."""

    def __init__(self, kind, name, default, help="", least=None, most=None, below=None, choices=(), required=False):
        self.kind, self.name, self.default, self.help = kind, name, default, help
        self.least, self.most, self.below, self.choices, self.required = least, most, below, choices, required

    def message(self):
        h = pb.Hyper(name=self.name, type=self.kind, help=self.help, choices=self.choices)
        if not self.required:
            h.default.CopyFrom(_value(self.kind, self.default))
        if self.least is not None:
            h.min = self.least
        if self.most is not None:
            h.max = self.most
        if self.below is not None:
            h.max, h.below_max = self.below, True
        return h


def _kind(kind):
    def make(name, default=None, help="", **more):
        return Hyper(kind, name, default, help, **more)

    return make


Float, Int, Bool, String, Floats = (_kind(k) for k in (pb.Hyper.FLOAT, pb.Hyper.INT, pb.Hyper.BOOL, pb.Hyper.STRING, pb.Hyper.FLOATS))


def _value(kind, v):
    if kind == pb.Hyper.FLOATS:
        return pb.Value(floats=pb.Floats(values=v))
    return pb.Value(**{{pb.Hyper.FLOAT: "float", pb.Hyper.INT: "int", pb.Hyper.BOOL: "bool", pb.Hyper.STRING: "string"}[kind]: v})


def _unvalue(v):
    kind = v.WhichOneof("kind")
    return list(v.floats.values) if kind == "floats" else getattr(v, kind)


class State:
    """A piece of float32 state for each parameter: of its shape, or of shape (whole tensors only), whose entries are "rows", "cols" or numbers."""

    def __init__(self, name, init=0.0, shape=None):
        self.name, self.init, self.shape = name, init, shape

    def message(self):
        return pb.Slot(name=self.name, dtype=pb.Slot.F32, init=self.init, same_shape=self.shape is None, shape=[str(d) for d in self.shape or ()])


class Manifest:
    """Says what the plugin is. whole=True asks for whole tensors; otherwise each element's update depends on this element alone.

    upgrades_from lists the earlier versions whose state Optimizer.upgrade turns into this one's.
    """

    def __init__(self, name, version, doc="", hypers=(), state=(), whole=False, min_dims=0, max_dims=0, upgrades_from=()):
        self.name, self.version, self.doc, self.hypers, self.state = name, version, doc, hypers, state
        self.whole, self.min_dims, self.max_dims, self.upgrades_from = whole, min_dims, max_dims, upgrades_from

    def message(self):
        o = pb.OptimizerInfo(granularity=pb.OptimizerInfo.WHOLE if self.whole else pb.OptimizerInfo.ELEMENTWISE,
                             slots=[s.message() for s in self.state], min_dims=self.min_dims, max_dims=self.max_dims, upgrades_from=self.upgrades_from)
        return pb.Manifest(name=self.name, version=self.version, doc=self.doc, hypers=[h.message() for h in self.hypers], optimizer=o)


class Tensor:
    """A parameter, or a range of one, in one step.

    name, shape (of the whole parameter), group; start and stop: the range of elements; step: updates taken before; rate: the
    learning rate; param, grad and state[name]: float32 arrays, flat, or in the parameter's shape with whole=True.
    """


class Optimizer:
    manifest = None

    def setup(self, hypers):
        """Called once, before the first step, with a dict of every hyper-parameter."""

    def step(self, t):
        """Renews t.param and t.state in place."""
        raise NotImplementedError

    def upgrade(self, u):
        """Turns the state of an earlier version, u.old[name], into u.state[name], in place; it is called without setup.

        u.version is that version, u.hypers a dict; name, shape, start, stop, step and param are as in step, all arrays flat. u.state begins
        as the old state of the same name and size, or else as the initial value.
        """
        raise NotImplementedError


class _Futex:
    """The words in shared memory by which the two processes wait for each other."""

    _NUMBER = {"x86_64": 202, "aarch64": 98}.get(platform.machine())

    def __init__(self):
        self._libc = ctypes.CDLL(None, use_errno=True)

    def wake(self, word):
        if self._NUMBER is not None:
            self._libc.syscall(self._NUMBER, ctypes.byref(word), 1, 2**31 - 1, None, None, 0)

    @staticmethod
    def wait(word, value, stopped):
        spins = 0
        while word.value != value:
            if stopped():
                raise _Stopped()
            spins += 1
            if spins > 100:
                time.sleep(20e-6)


class _Stopped(Exception):
    pass


def _aligned(n):
    return (4 * n + 63) // 64 * 64


class _Servicer(rpc.PluginServicer, rpc.OptimizerServicer):
    def __init__(self, optimizer):
        self.optimizer, self.futex = optimizer, _Futex()

    def Describe(self, request, context):
        return self.optimizer.manifest.message()

    def Setup(self, request, context):
        try:
            memory = [np.frombuffer(mmap.mmap(m.fd, m.bytes, prot=mmap.PROT_READ), np.uint8) if m.bytes else np.empty(0, np.uint8) for m in request.memories]

            def view(place, n):
                return memory[place.memory][place.offset:place.offset + 4 * n].view(np.float32)

            self.task = request.scratch.task_elements
            self.tasks = []
            for p in request.parameters:
                n = getattr(p, "to") - getattr(p, "from")
                state = [view(s, k) for s, k in zip(p.state, p.state_elements)]
                step = self.task or n
                for lo in range(0, n, max(step, 1)):
                    self.tasks.append((p, view(p.value, n), view(p.gradient, n), state, lo, min(n, lo + step)))
            s = request.scratch
            self.scratch = mmap.mmap(s.memory.fd, s.memory.bytes)
            self.first, self.stride, self.count = s.first, s.stride, s.count
            self.optimizer.setup({k: _unvalue(v) for k, v in request.hypers.items()})
        except Exception:
            context.abort(grpc.StatusCode.ABORTED, "Setup: " + traceback.format_exc())
        return pb.SetupResponse()

    def Step(self, request, context):
        t = Tensor()
        try:
            for number in range(request.first, request.last):
                p, value, grad, state, lo, hi = self.tasks[number]
                t.name, t.shape, t.group, t.step = p.name, tuple(p.shape), p.group, request.step
                t.start, t.stop = getattr(p, "from") + lo, getattr(p, "from") + hi
                t.rate = request.rates[p.group] if p.group < len(request.rates) else 0.0
                slot = number % self.count
                turn = ctypes.c_uint32.from_buffer(self.scratch, 64 * slot)
                self.futex.wait(turn, number & 0xFFFFFFFF, lambda: not context.is_active())
                at = self.first + slot * self.stride

                def carve(source):
                    nonlocal at
                    out = np.frombuffer(self.scratch, np.float32, source.size, at)
                    out[:] = source
                    at += _aligned(source.size)
                    return out

                t.param = carve(value[lo:hi])
                slots = self.optimizer.manifest.state
                t.state = {s.name: carve(x[lo:hi] if self.task else x) for s, x in zip(slots, state)}
                t.grad = grad[lo:hi] * np.float32(request.grad_scale)
                if not self.task:
                    t.param, t.grad = t.param.reshape(t.shape), t.grad.reshape(t.shape)
                    t.state = {s.name: t.state[s.name].reshape(t.shape) if s.shape is None else t.state[s.name] for s in slots}
                param, arrays = t.param, dict(t.state)
                self.optimizer.step(t)
                if t.param is not param or any(t.state.get(k) is not v for k, v in arrays.items()):
                    raise TypeError("step must change t.param and t.state in place (t.param[:] = …), not replace them")
                ctypes.c_uint64.from_buffer(self.scratch, 64 * slot + 8).value = hi - lo
                ready = ctypes.c_uint32.from_buffer(self.scratch, 64 * slot + 4)
                ready.value = (number + 1) & 0xFFFFFFFF
                self.futex.wake(ready)
        except _Stopped:
            context.abort(grpc.StatusCode.CANCELLED, "cancelled")
        except Exception:
            context.abort(grpc.StatusCode.ABORTED, "Step for %s[%d:%d]: %s" % (t.name, t.start, t.stop, traceback.format_exc()))
        return pb.StepResponse()


    def Upgrade(self, request, context):
        u = Tensor()
        try:
            def array(v):
                return np.array(v, np.float32)

            u.version, u.hypers = request.version, {k: _unvalue(v) for k, v in request.hypers.items()}
            u.name, u.shape, u.step = request.name, tuple(request.shape), request.step
            u.start, u.stop = getattr(request, "from"), request.to
            u.param = array(request.param)
            u.old = {k: array(v.values) for k, v in request.old.items()}
            u.state = {s.name: array(v.values) for s, v in zip(self.optimizer.manifest.state, request.state)}
            arrays = dict(u.state)
            self.optimizer.upgrade(u)
            if any(u.state.get(k) is not v for k, v in arrays.items()):
                raise TypeError("upgrade must change u.state in place (u.state[\"m\"][:] = …), not replace it")
        except Exception:
            context.abort(grpc.StatusCode.ABORTED, "Upgrade of %s: %s" % (request.name, traceback.format_exc()))
        return pb.UpgradeResponse(state=[pb.StateValues(values=v) for v in arrays.values()])


def _end_with(parent):
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def serve(optimizer):
    """Serves the optimizer to the runtime that started this program, and does not return."""
    name = optimizer.manifest.name
    if not re.fullmatch("[a-z][a-z0-9_-]{0,63}", name):
        sys.exit("plugin %r cannot be served: the name must be lower-case letters, digits, - and _" % name)
    if os.environ.get(_COOKIE[0]) != _COOKIE[1]:
        sys.exit("%s is a plugin of Starling: the runtime starts it when a recipe names it, with plugin.optimizer(%r, …)." % (name, name))
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with os.fdopen(int(os.environ["STARLING_PLUGIN_CREDENTIALS"])) as f:
        c = json.load(f)
    credentials = grpc.ssl_server_credentials([(c["key"].encode(), c["cert"].encode())], c["ca"].encode(), require_client_auth=True)
    server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", 1 << 30)])
    servicer = _Servicer(optimizer)
    rpc.add_PluginServicer_to_server(servicer, server)
    rpc.add_OptimizerServicer_to_server(servicer, server)
    path = os.path.join(os.environ["PLUGIN_UNIX_SOCKET_DIR"], "python.sock")
    server.add_secure_port("unix:" + path, credentials)
    server.start()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the plugin prints goes where its errors go
    out.write("1|%d|unix|%s|grpc|\n" % (_PROTOCOL, path))
    out.flush()
    server.wait_for_termination()
