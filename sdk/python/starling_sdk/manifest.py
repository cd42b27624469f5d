"""What a plugin says of itself."""

import traceback

from . import starling_plugin_pb2 as pb


class Hyper:
    """A hyper-parameter, or a setting of a plugin that is no optimizer. Make one with Float, Floats, Int, Bool or String.

    least, most and below (which is not allowed itself) bound numbers; choices lists what a string may be; required=True takes the default
    away, so that recipes must give a value. A Floats is a list of the default's length.
    """

    def __init__(self, kind, name, default, help="", least=None, most=None, below=None, choices=(), required=False):
        self.kind, self.name, self.default, self.help = kind, name, default, help
        self.least, self.most, self.below, self.choices, self.required = least, most, below, choices, required

    def message(self):
        h = pb.Hyper(name=self.name, type=self.kind, help=self.help, choices=self.choices)
        if not self.required:
            if self.default is None:
                raise ValueError("hyper-parameter %r has no default: give one, or required=True" % self.name)
            h.default.CopyFrom(_value(self.kind, self.default))
        elif self.kind == pb.Hyper.FLOATS and self.default is not None:  # its length counts
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


def values(message):
    """A map of values that came over the wire, as a dict."""

    def value(v):
        kind = v.WhichOneof("kind")
        return list(v.floats.values) if kind == "floats" else getattr(v, kind)

    return {k: value(v) for k, v in message.items()}


class State:
    """A piece of float32 state for each parameter: of its shape, or of shape (whole tensors only), whose entries are "rows", "cols" or numbers; () is a scalar."""

    def __init__(self, name, init=0.0, shape=None):
        self.name, self.init, self.shape = name, init, shape

    def message(self):
        return pb.Slot(name=self.name, dtype=pb.Slot.F32, init=self.init, same_shape=self.shape is None, shape=[str(d) for d in self.shape or ()])


class Manifest:
    """Says what the plugin is. What comes after hypers is for optimizers.

    whole=True asks for whole tensors; otherwise each element's update depends on this element alone. min_dims and max_dims bound the number
    of dimensions of the parameters that it takes. upgrades_from lists the earlier versions whose state Optimizer.upgrade turns into this one's.
    """

    def __init__(self, name, version, doc="", hypers=(), state=(), whole=False, min_dims=0, max_dims=0, upgrades_from=()):
        self.name, self.version, self.doc, self.hypers, self.state = name, version, doc, hypers, state
        self.whole, self.min_dims, self.max_dims, self.upgrades_from = whole, min_dims, max_dims, upgrades_from

    def settings(self, **given):
        """Every hyper-parameter's default with what is given in its place, as setup receives them: for tests."""
        known = {h.name: h.default for h in self.hypers}
        for name in given:
            if name not in known:
                raise KeyError("plugin %s has no hyper-parameter %r" % (self.name, name))
        return {**known, **given}

    def message(self, kind):
        """The manifest as it travels. kind is the name of the field of what is of that kind alone."""
        own = {"sink": pb.SinkInfo, "schedule": pb.ScheduleInfo, "compressor": pb.CompressorInfo}.get(kind, self._optimizer)()
        return pb.Manifest(name=self.name, version=self.version, doc=self.doc, hypers=[h.message() for h in self.hypers], **{kind: own})

    def _optimizer(self):
        return pb.OptimizerInfo(granularity=pb.OptimizerInfo.WHOLE if self.whole else pb.OptimizerInfo.ELEMENTWISE,
                                slots=[s.message() for s in self.state], min_dims=self.min_dims, max_dims=self.max_dims, upgrades_from=self.upgrades_from)


class Plugin:
    """What all plugins have: a manifest, which must always be the same."""

    manifest = None


class Refused(Exception):
    """Raise it where what was given cannot be used: settings that do not go together, or in Compressor.decode bytes that are no encoding.

    The person who reads it wrote a recipe, not the plugin: it is shown without a traceback, which every other exception has.
    """


def told(what, error):
    """The text of an exception in the plugin's code."""
    if isinstance(error, Refused):
        return "%s: %s" % (what, error)
    return "%s: %s" % (what, "".join(traceback.format_exception(type(error), error, error.__traceback__)))
