// Package sdk is what third parties import to extend Starling.
//
// It is a module of its own, starling/sdk, with no dependencies and nothing of
// the runtime in it, so that a plugin's build never meets the runtime's
// modules. Package vec holds the vector kernels that the runtime's CPU device
// and optimizer plugins share: a plugin that computes with them gives the same
// bits as the runtime would, on every processor.
package sdk
