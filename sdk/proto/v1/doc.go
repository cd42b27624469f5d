// Package pluginv1 is version 1 of the protocol between Starling and its plugins, generated from plugin.proto, which is its
// documentation.
//
// The stubs of the Python SDK are made from the same file, under the name starling_plugin.proto, by grpcio-tools 1.85.1, the oldest that plugins
// have to run with: python3 -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. starling_plugin.proto. In the second of the two the import
// becomes one from the package: from . import starling_plugin_pb2.
package pluginv1

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative plugin.proto
