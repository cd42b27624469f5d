package devicetest_test

import (
	"math"
	"os"
	"os/exec"
	"testing"

	"starling/core/device"
	"starling/core/device/devicetest"
	"starling/core/device/ref"
	"starling/core/tensor"
)

// broken wraps the kernels of the reference device in a mistake.
type broken struct {
	*ref.Device
	damage func(c device.Call, run func())
}

func (d broken) Bind(c device.Call) (func(), error) {
	run, err := d.Device.Bind(c)
	return func() { d.damage(c, run) }, err
}

func result(c device.Call) []float32 { return tensor.View[float32](c.Out[0].Bytes()) }

var mistakes = map[string]struct {
	op     string // the operation whose subtests must notice
	damage func(c device.Call, run func())
}{
	"a result that is slightly off": {"relu", func(c device.Call, run func()) {
		run()
		y := result(c)
		y[len(y)/2] = math.Nextafter32(y[len(y)/2], 9)
	}},
	"an element left unwritten": {"linear", func(c device.Call, run func()) {
		y := result(c)
		old := y[len(y)-1]
		run()
		y[len(y)-1] = old
	}},
	"a byte written behind the result": {"softmax", func(c device.Call, run func()) {
		run()
		c.Out[0].Arena.Bytes()[c.Out[0].Offset+c.Out[0].Type.Bytes()] = 1
	}},
	"an input changed": {"rms_norm", func(c device.Call, run func()) {
		run()
		tensor.View[float32](c.In[1].Bytes())[0]++
	}},
	"other bits in a second run": {"sum", func() func(c device.Call, run func()) {
		runs := 0
		return func(c device.Call, run func()) {
			run()
			runs++
			y := result(c)
			y[0] = math.Nextafter32(y[0], float32(runs%2)*1e9)
		}
	}()},
	"an accumulating form that starts anew": {"linear_grad_w", func(c device.Call, run func()) {
		if c.Accum {
			y := result(c)
			clear(y)
		}
		run()
	}},
	"a result that is cleared before an input on the same place is read": {"gelu_grad", func(c device.Call, run func()) {
		clear(result(c))
		run()
	}},
	"a NaN that is lost": {"maximum", func(c device.Call, run func()) {
		run()
		y := result(c)
		for i, v := range y {
			if v != v {
				y[i] = 0
			}
		}
	}},
}

// The suite fails a device with any of these mistakes. Each is tried in a process of its own, because a test cannot
// expect another to fail.
func TestMistakesAreNoticed(t *testing.T) {
	const variable = "STARLING_DEVICETEST_MISTAKE"
	if name := os.Getenv(variable); name != "" {
		m := mistakes[name]
		devicetest.Run(t, func() device.Device { return broken{ref.Open(), m.damage} })
		return
	}
	for name, m := range mistakes {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestMistakesAreNoticed$/^"+m.op+"$")
			cmd.Env = append(os.Environ(), variable+"="+name)
			if out, err := cmd.CombinedOutput(); err == nil {
				t.Errorf("the suite passes a device with this mistake in %s:\n%s", m.op, out)
			}
		})
	}
}
