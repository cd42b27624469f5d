// Package sdk is what third parties import to extend Starling.
//
// A plugin is a program of its own that the runtime starts beside each rank. Its main function is one call:
//
//	func main() { sdk.Serve(&lion{}) }
//
// where the argument is an [Optimizer], a [Sink], a [Schedule] or a [Compressor]. The plugin never meets the runtime's modules: this module depends on gRPC and
// go-plugin only. Package vec holds the vector kernels that the runtime's CPU device and plugins share: a plugin that computes
// with them gives the same bits as the runtime would, on every processor. Package proto/v1 is the protocol, for plugins in
// other languages; package shm the shared memory beside it.
package sdk
