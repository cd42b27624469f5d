"""What a plugin for Starling is written with in Python. It needs numpy, grpcio and protobuf, of the versions in requirements.txt.

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

    if __name__ == "__main__":
        sdk.serve(SGD())

A plugin is an object of a class that derives from Optimizer, Compressor, Schedule or Sink and has a manifest. The runtime owns what lasts:
except for a sink, which writes files, a plugin must remember nothing, because its process may be killed between any two calls and the call
is then made again. The same arguments must give the same bits.
"""

from .compressor import Compressor, Layout
from .manifest import Bool, Float, Floats, Hyper, Int, Manifest, Plugin, Refused, State, String
from .optimizer import Optimizer, Tensor, Upgrade
from .schedule import Schedule
from .server import serve
from .sink import Record, Run, Sink

__all__ = ["Bool", "Compressor", "Float", "Floats", "Hyper", "Int", "Layout", "Manifest", "Optimizer", "Plugin", "Record", "Refused", "Run",
           "Schedule", "Sink", "State", "String", "Tensor", "Upgrade", "serve"]
