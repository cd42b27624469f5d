//go:build !linux

package comm

import "net"

// Tune prepares a TCP connection for bulk data.
func Tune(net.Conn) {}
