//go:build !unix

package cluster

import (
	"context"
	"errors"
	"net"
)

var errNoLaunch = errors.New("cluster: worker processes need a Unix system; run the ranks in process")

// Launch is not available on this system.
func Launch(context.Context, Config) ([][]byte, error) { return nil, errNoLaunch }

func inheritedControl() (net.Conn, error) { return nil, errNoLaunch }
