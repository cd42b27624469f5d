"""The plugin's side of the connection."""

import json
import os
import re
import sys
import threading
import time
from concurrent import futures

import grpc

from . import compressor, optimizer, schedule, sink
from . import starling_plugin_pb2_grpc as rpc

_COOKIE = ("STARLING_PLUGIN", "served-to-a-rank")
_PROTOCOL = 1

# By what a plugin derives from: its kind, and how it is served.
_KINDS = [
    (optimizer.Optimizer, "optimizer", optimizer.Servicer, rpc.add_OptimizerServicer_to_server),
    (compressor.Compressor, "compressor", compressor.Servicer, rpc.add_CompressorServicer_to_server),
    (schedule.Schedule, "schedule", schedule.Servicer, rpc.add_ScheduleServicer_to_server),
    (sink.Sink, "sink", sink.Servicer, rpc.add_SinkServicer_to_server),
]


class _Description(rpc.PluginServicer):
    def __init__(self, manifest):
        self.manifest = manifest

    def Describe(self, request, context):
        return self.manifest


def _end_with(parent):
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def serve(plugin):
    """Serves the plugin to the runtime that started this program, and does not return."""
    found = [k for k in _KINDS if isinstance(plugin, k[0])]
    if len(found) != 1:
        sys.exit("%r cannot be served: its class must derive from one of Optimizer, Compressor, Schedule and Sink, and does from %d" % (plugin, len(found)))
    _, kind, servicer, add = found[0]
    if plugin.manifest is None:
        sys.exit("%r cannot be served: its class has no manifest" % plugin)
    name = plugin.manifest.name
    if not re.fullmatch("[a-z][a-z0-9_-]{0,63}", name):
        sys.exit("plugin %r cannot be served: the name must be lower-case letters, digits, - and _" % name)
    if plugin.manifest.upgrades_from and kind == "optimizer" and type(plugin).upgrade is optimizer.Optimizer.upgrade:
        sys.exit("plugin %s cannot be served: its manifest says that it upgrades from %s, and its class has no method upgrade" % (name, ", ".join(plugin.manifest.upgrades_from)))
    manifest = plugin.manifest.message(kind)
    if os.environ.get(_COOKIE[0]) != _COOKIE[1]:
        sys.exit("%s is a plugin of Starling: the runtime starts it when a recipe names it, with plugin.%s(%r, …)." % (name, kind, name))
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with os.fdopen(int(os.environ["STARLING_PLUGIN_CREDENTIALS"])) as f:
        c = json.load(f)
    credentials = grpc.ssl_server_credentials([(c["key"].encode(), c["cert"].encode())], c["ca"].encode(), require_client_auth=True)
    server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", 1 << 30), ("grpc.max_send_message_length", 1 << 30)])
    rpc.add_PluginServicer_to_server(_Description(manifest), server)
    add(servicer(plugin), server)
    path = os.path.join(os.environ["PLUGIN_UNIX_SOCKET_DIR"], "python.sock")
    server.add_secure_port("unix:" + path, credentials)
    server.start()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the plugin prints goes where its errors go
    out.write("1|%d|unix|%s|grpc|\n" % (_PROTOCOL, path))
    out.flush()
    server.wait_for_termination()
