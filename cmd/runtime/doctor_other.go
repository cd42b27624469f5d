//go:build !linux

package main

// limits reads the system's limits for this process: here they are not known.
func (d *diagnosis) limits() { d.Memlock, d.Files = "not known", "not known" }
