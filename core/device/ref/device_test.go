package ref_test

import (
	"testing"

	"starling/core/device"
	"starling/core/device/devicetest"
	"starling/core/device/ref"
)

func TestDevice(t *testing.T) {
	devicetest.Run(t, func() device.Device { return ref.Open() })
}
