package cpu

import (
	"fmt"
	"time"

	"starling/core/device"
	"starling/sdk/vec"
)

// Config says how a device uses the machine. The zero value uses all of it.
type Config struct {
	// Threads is the number of threads that compute, the caller's included. Zero means the cores that this process may use
	// (its affinity and its CPU quota) divided by Ranks. It never changes a result.
	Threads int
	// Kernels names the set of vector kernels: "avx512", "avx2" or "generic"; "" leaves the one in use, by default the fastest
	// that the processor has. All give the same bits. The choice holds for the whole process: devices that compute at the same
	// time name the same set.
	Kernels string
	// Ranks is how many devices share this machine's cores, zero meaning one. Idle threads wait for work without giving up
	// their core, for two milliseconds at most, only where every rank's threads have a core each.
	Ranks int
	// TrackWrites makes kernels note how far they write into each arena, for HighWater.
	TrackWrites bool
	// Measure makes threads note how long they compute, for Spent.
	Measure bool
}

// Device is the CPU. Its methods and the kernels that it makes are used by one goroutine.
type Device struct {
	pool   *pool
	track  bool
	own    []scratch // one per thread
	shared scratch
	tables map[turnsKey]turns
	copier *copier // nil until a copy is bound
	held   held
}

var (
	_ device.Device        = (*Device)(nil)
	_ device.Copier        = (*Device)(nil)
	_ device.HostAllocator = (*Device)(nil)
)

// Open starts the device's threads. An error names what this machine cannot do.
func Open(cfg Config) (*Device, error) {
	if cfg.Threads < 0 || cfg.Ranks < 0 {
		return nil, fmt.Errorf("cpu: threads (%d) and ranks (%d) cannot be negative", cfg.Threads, cfg.Ranks)
	}
	ranks := max(cfg.Ranks, 1)
	threads := cfg.Threads
	if threads == 0 {
		threads = max(1, Cores()/ranks)
	}
	if err := chooseKernels(cfg.Kernels); err != nil {
		return nil, fmt.Errorf("cpu: %w", err)
	}
	pool := newPool(threads, maySpin(threads, ranks, atStart, quota()))
	pool.measured = cfg.Measure
	return &Device{
		pool:   pool,
		track:  cfg.TrackWrites,
		own:    make([]scratch, threads),
		tables: map[turnsKey]turns{},
	}, nil
}

// chooseKernels switches vec to the named set.
func chooseKernels(name string) error {
	switch name {
	case "":
		return vec.Init() // the environment may have named a set that is not to be had
	case vec.Active():
		return nil
	}
	_, err := vec.Use(name)
	return err
}

// Name implements device.Device.
func (d *Device) Name() string { return "cpu" }

// KernelSet implements device.Device.
func (d *Device) KernelSet() string { return vec.Active() }

// Threads is the number of threads that compute.
func (d *Device) Threads() int { return d.pool.threads }

// Spent is how long the device's other threads have computed and the caller's has waited for them since the device was opened; zero
// unless that is measured. Of kernels that took the caller t, threads·t - (t - waited + worked) is what threads were idle.
func (d *Device) Spent() (worked, waited time.Duration) { return d.pool.spent() }

// Bind implements device.Device.
func (d *Device) Bind(c device.Call) (func(), error) {
	for _, ts := range [][]device.Tensor{c.In, c.Out} {
		for _, t := range ts {
			if t.Arena.Bytes() == nil && t.Arena.Size() > 0 {
				return nil, fmt.Errorf("cpu: %s has an operand in memory that the processor cannot address", c.Op.Name)
			}
		}
	}
	if c.Accum && !c.Op.Accumulates {
		return nil, fmt.Errorf("cpu: %s cannot accumulate into its result", c.Op.Name)
	}
	mk, err := find(c)
	if err != nil {
		return nil, err
	}
	run, err := mk(d, c)
	if err != nil {
		return nil, fmt.Errorf("cpu: %s: %w", c.Op.Name, err)
	}
	if d.track {
		run = d.tracked(run, c.Out)
	}
	return run, nil
}

// tracked notes in each arena how far a kernel writes.
func (d *Device) tracked(run func(), out []device.Tensor) func() {
	return func() {
		run()
		for _, t := range out {
			if a, ok := t.Arena.(*arena); ok {
				a.wrote(t.Offset + t.Type.Bytes())
			}
		}
	}
}

// ScratchBytes implements device.Device.
func (d *Device) ScratchBytes() int64 {
	n := int64(len(d.shared.mem))
	for i := range d.own {
		n += int64(len(d.own[i].mem))
	}
	for _, t := range d.tables {
		n += 4 * int64(len(t.cos)+len(t.sin))
	}
	return n
}

// Close implements device.Device.
func (d *Device) Close() {
	d.pool.close()
	d.copier.close()
	for i := range d.own {
		d.own[i].free()
	}
	d.shared.free()
}
