"""Optimizers: they renew parameters and state in shared memory."""

import ctypes
import mmap
import platform
import time

import grpc
import numpy as np

from . import starling_plugin_pb2 as pb
from . import starling_plugin_pb2_grpc as rpc
from .manifest import Plugin, told, values


class Tensor:
    """A parameter, or a range of one, in one step.

    name, shape (of the whole parameter), group; start and stop: the range of elements; step: updates taken before; rate: the
    learning rate; param, grad and state[name]: float32 arrays, flat, or in the parameter's shape with whole=True. Tests make one from
    param, grad and state, and what else the optimizer looks at.
    """

    def __init__(self, param=None, grad=None, state=None, name="", shape=None, group=0, start=0, stop=None, step=0, rate=0.0):
        self.param, self.grad, self.state = param, grad, state if state is not None else {}
        self.shape = tuple(shape) if shape is not None else () if param is None else param.shape
        self.name, self.group, self.step, self.rate = name, group, step, rate
        self.start, self.stop = start, stop if stop is not None else start + (0 if param is None else param.size)


class Upgrade:
    """The state of a parameter, or of a range of one, between two versions.

    version: that left the state; hypers: this version's, a dict; name, shape, start, stop, step and param as in Tensor, all arrays flat;
    old[name]: the earlier version's state; state[name]: this version's, which begins as the old state of the same name and size, or else as
    the initial value.
    """

    def __init__(self, version="", hypers=None, name="", shape=(), start=0, stop=0, step=0, param=None, old=None, state=None):
        self.version, self.hypers, self.name, self.shape = version, hypers or {}, name, tuple(shape)
        self.start, self.stop, self.step, self.param, self.old, self.state = start, stop, step, param, old or {}, state or {}


class Optimizer(Plugin):
    """Renews parameters and state, which the runtime owns."""

    def setup(self, hypers):
        """Called once, before the first step, with a dict of every hyper-parameter."""

    def step(self, t):
        """Renews t.param and t.state in place."""
        raise NotImplementedError

    def upgrade(self, u):
        """Turns the state of an earlier version, u.old[name], into u.state[name], in place; it is called without setup."""
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


def _kept(what, arrays, now, name):
    """Refuses arrays that were replaced: the runtime reads those that it gave."""
    if now.keys() != arrays.keys() or any(now[k] is not v for k, v in arrays.items()):
        raise TypeError("%s must change %s in place (%s[:] = …), not replace it" % (what, name, name))


class Servicer(rpc.OptimizerServicer):
    def __init__(self, optimizer):
        self.optimizer, self.futex = optimizer, _Futex()

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
            self.optimizer.setup(values(request.hypers))
        except Exception as e:
            context.abort(grpc.StatusCode.ABORTED, told("Setup", e))
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
                given, arrays = {"param": t.param}, dict(t.state)
                self.optimizer.step(t)
                _kept("step", given, {"param": t.param}, "t.param")
                _kept("step", arrays, t.state, "each t.state[name]")
                ctypes.c_uint64.from_buffer(self.scratch, 64 * slot + 8).value = hi - lo
                ready = ctypes.c_uint32.from_buffer(self.scratch, 64 * slot + 4)
                ready.value = (number + 1) & 0xFFFFFFFF
                self.futex.wake(ready)
        except _Stopped:
            context.abort(grpc.StatusCode.CANCELLED, "cancelled")
        except Exception as e:
            context.abort(grpc.StatusCode.ABORTED, told("Step for %s[%d:%d]" % (t.name, t.start, t.stop), e))
        return pb.StepResponse()

    def Upgrade(self, request, context):
        def array(v):
            return np.array(v, np.float32)

        try:
            u = Upgrade(request.version, values(request.hypers), request.name, request.shape, getattr(request, "from"), request.to, request.step,
                        array(request.param), {k: array(v.values) for k, v in request.old.items()},
                        {s.name: array(v.values) for s, v in zip(self.optimizer.manifest.state, request.state)})
            arrays = dict(u.state)
            self.optimizer.upgrade(u)
            _kept("upgrade", arrays, u.state, "each u.state[name]")
        except Exception as e:
            context.abort(grpc.StatusCode.ABORTED, told("Upgrade of %s" % request.name, e))
        return pb.UpgradeResponse(state=[pb.StateValues(values=v) for v in arrays.values()])
