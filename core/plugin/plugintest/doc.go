// Package plugintest is the conformance suite of optimizer plugins: what an optimizer must do for the runtime's promises to
// hold. It starts the plugin as a rank does and compares bits. Sinks have a shorter one.
package plugintest
