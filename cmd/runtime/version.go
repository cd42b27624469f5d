package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"starling/sdk/vec"
)

// version is set at link time for releases: -ldflags "-X main.version=1.2.3".
var version = "devel"

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the Go release and the kernels of this machine",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := vec.Init(); err != nil {
				return err
			}
			rev := ""
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						rev = " " + s.Value
					}
				}
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "starling %s%s, %s, %s/%s, kernels %s\n", version, rev, runtime.Version(), runtime.GOOS, runtime.GOARCH, vec.Active())
			return err
		},
	}
}
