//go:build !unix

package cpu

import (
	"errors"
	"os"
)

func mapFile(*os.File, int64) ([]byte, error) {
	return nil, errors.New("memory in files is not to be had on this system")
}
