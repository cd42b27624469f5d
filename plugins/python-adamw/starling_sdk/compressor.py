"""Compressors: they make gradients small enough for slow links."""

import mmap

import grpc
import numpy as np

from . import starling_plugin_pb2 as pb
from . import starling_plugin_pb2_grpc as rpc
from .manifest import Plugin, Refused, told, values

_MAX_BLOCK = 1 << 24


class Layout:
    """How many bytes an encoding has: head in front, and block_bytes for each block of elements, the last of which may be incomplete.

    It depends on the number of elements alone, so that every rank knows what it will receive.
    """

    def __init__(self, block, block_bytes, head=0):
        self.head, self.block, self.block_bytes = head, block, block_bytes

    def size(self, n):
        """The number of bytes of n elements."""
        return self.head + (n + self.block - 1) // self.block * self.block_bytes if n else 0

    def validate(self):
        """Raises Refused for a layout that makes no sense, or nothing smaller."""
        if not 1 <= self.block <= _MAX_BLOCK:
            raise Refused("layout: a block of %d elements: must be of 1 to %d" % (self.block, _MAX_BLOCK))
        if not 0 <= self.head <= _MAX_BLOCK or self.block_bytes < 0 or self.head + self.block_bytes < 1:
            raise Refused("layout: %d bytes in front and %d for each block: must be at least 0, with the former at most %d, and something must be sent"
                          % (self.head, self.block_bytes, _MAX_BLOCK))
        if self.block_bytes >= 4 * self.block:
            raise Refused("layout: %d bytes for %d elements are no fewer than the %d of the elements themselves" % (self.block_bytes, self.block, 4 * self.block))


class Compressor(Plugin):
    """Turns vectors into bytes and back.

    The runtime keeps what an encoding loses and adds it to what is sent next (error feedback), and it owns the exchange.
    """

    def setup(self, settings):
        """Called before everything else with a dict of the recipe's settings; returns the Layout. Raises Refused for settings that do not go together."""
        raise NotImplementedError

    def encode(self, dst, x):
        """Writes the encoding of x, a float32 array of finite elements, to dst, a uint8 array of the layout's size that is zeroed. x cannot be written."""
        raise NotImplementedError

    def decode(self, dst, src):
        """Writes the elements that src, a uint8 array that another rank has sent, encodes to the float32 array dst. Raises Refused for what is no encoding."""
        raise NotImplementedError


class Servicer(rpc.CompressorServicer):
    def __init__(self, compressor):
        self.compressor, self.most = compressor, 0

    def Setup(self, request, context):
        if self.most:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "Setup is called once")
        try:
            self.layout = self.compressor.setup(values(request.settings))
            if not isinstance(self.layout, Layout):
                raise TypeError("setup must return a Layout, not %r" % (self.layout,))
            self.layout.validate()
            if request.HasField("memory"):
                self._map(request)
        except Exception as e:
            context.abort(grpc.StatusCode.ABORTED, told("Setup", e))
        return pb.CompressorSetupResponse(head=self.layout.head, block=self.layout.block, block_bytes=self.layout.block_bytes)

    def _map(self, r):
        n, size = r.elements, self.layout.size(r.elements)
        if n < 1 or r.encoding < 4 * n or r.decoded < r.encoding + size or r.memory.bytes < r.decoded + 4 * n or r.decoded % 4:
            raise ValueError("%d elements, their encoding at %d and what it decodes to at %d do not fit into %d bytes" % (n, r.encoding, r.decoded, r.memory.bytes))
        m = np.frombuffer(mmap.mmap(r.memory.fd, r.memory.bytes), np.uint8)
        self.x, self.encoding = m[:4 * n].view(np.float32), m[r.encoding:r.encoding + size]
        self.decoded, self.most = m[r.decoded:r.decoded + 4 * n].view(np.float32), n
        self.x.flags.writeable = False

    def _part(self, n, context):
        """What a call for n elements works on."""
        if not 0 <= n <= self.most:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "%d elements, and Setup has named at most %d" % (n, self.most))
        return self.x[:n], self.encoding[:self.layout.size(n)], self.decoded[:n]

    def Encode(self, request, context):
        x, encoding, decoded = self._part(request.elements, context)
        what = "Encode"
        try:
            encoding[:] = 0
            self.compressor.encode(encoding, x)
            what = "Decode of what Encode has made"
            self.compressor.decode(decoded, _unwritten(encoding))
        except Exception as e:
            context.abort(grpc.StatusCode.ABORTED, told(what, e))
        return pb.EncodeResponse(bytes=encoding.size)

    def Decode(self, request, context):
        _, encoding, decoded = self._part(request.elements, context)
        if request.bytes != encoding.size:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "%d bytes encode no %d elements, %d do" % (request.bytes, decoded.size, encoding.size))
        verdict = None
        try:
            self.compressor.decode(decoded, _unwritten(encoding))
            if not np.isfinite(decoded).all():
                verdict = "the encoding stands for elements that are not finite"
        except Refused as e:
            verdict = str(e)
        except Exception as e:
            context.abort(grpc.StatusCode.ABORTED, told("Decode", e))
        if verdict is not None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, verdict)
        return pb.DecodeResponse()


def _unwritten(a):
    v = a.view()
    v.flags.writeable = False
    return v
