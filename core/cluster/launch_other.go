//go:build !unix

package cluster

import (
	"context"
	"errors"
	"io/fs"
)

var errNoLaunch = errors.New("cluster: worker processes need a Unix system; run the ranks in process")

// Launch is not available on this system.
func Launch(context.Context, Config) ([][]byte, error) { return nil, errNoLaunch }

func inheritedControl() (controlConn, error) { return nil, errNoLaunch }

// readableByOthers: the mode of a file does not say who may read it on this system.
func readableByOthers(fs.FileInfo) fs.FileMode { return 0 }
