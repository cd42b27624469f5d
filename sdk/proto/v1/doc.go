// Package pluginv1 is version 1 of the protocol between Starling and its plugins, generated from plugin.proto, which is its
// documentation.
package pluginv1

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative plugin.proto
