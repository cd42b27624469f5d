// Package tensor holds the vocabulary that every other package of the runtime
// shares: element types, shapes and typed views of raw host memory.
//
// It owns no arithmetic and knows neither graphs nor devices.
package tensor
