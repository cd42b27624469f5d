package train

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strconv"

	"starling/core/data"
	"starling/core/device"
	"starling/core/plan"
)

// MemoryPlan is what a rank will need, in bytes, known before the first step.
type MemoryPlan struct {
	Params, State, Grads, Work, IO  int64 // what is off the device is not in them
	Sums                            int64 // this rank's part of sharded gradients
	Communication, Loader, Snapshot int64
	Corpus, Scratch                 int64
	Compression                     int64 // gradients that compression has not sent yet, and its buffers
	Plugins                         int64 // results of optimizer plugins on their way
	// Off is what lives off the device, by what it is; on the host or on disk as Mesh.Offload says. What lives in files counts in no
	// total: what is not in use takes no memory.
	Off struct{ Params, State, Work int64 }
	// Where is Mesh.Offload. With OffloadHost the device's memory and the host's are counted apart.
	Where string
}

// Total is what the device has to hold: all of the process's memory unless the host's is counted apart.
func (m MemoryPlan) Total() int64 {
	n := m.Params + m.State + m.Grads + m.Sums + m.Work + m.IO + m.Communication + m.Scratch + m.Compression + m.Plugins
	if m.Where != OffloadHost {
		n += m.buffers()
	}
	return n
}

// Host is what the host has to hold beside the device's memory, where it is counted apart.
func (m MemoryPlan) Host() int64 {
	if m.Where != OffloadHost {
		return 0
	}
	return m.Off.Params + m.Off.State + m.Off.Work + m.buffers()
}

// buffers is what no device needs to reach.
func (m MemoryPlan) buffers() int64 { return m.Loader + m.Corpus + m.Snapshot }

// PlanMemory computes a rank's memory. The corpora must have been scanned; scratch is the device's own.
func PlanMemory(s *Spec, p *plan.Plan, scratch int64) MemoryPlan {
	a := p.ArenaBytes
	m := MemoryPlan{Params: a[device.Params], State: a[device.State], Grads: a[device.Grads] * int64(p.GradBuffers),
		Sums: a[device.Sums] * int64(p.SumBuffers), Work: a[device.Work], IO: a[device.IO], Scratch: scratch}
	m.Where, m.Off.Work = s.Mesh.Offload, a[device.Offload]
	if s.offloaded(p, device.Params) != "" {
		m.Off.Params, m.Params = m.Params, 0
	}
	if s.offloaded(p, device.State) != "" {
		m.Off.State, m.State = m.State, 0
	}
	sum := p.Summary()
	m.Communication, m.Compression = sum.StagingBytes, sum.CompressionBytes
	for _, x := range PluginShares(s, p, s.Mesh.Threads) {
		m.Plugins += x.ScratchBytes
	}
	fields := s.Data.Source.Fields()
	m.Loader = data.LoaderBytes(fields, s.Data.MicroBatch, s.Data.Workers, s.Data.Prefetch)
	m.Corpus = s.Data.Source.Corpus().Bytes()
	if e := s.Evaluate; e != nil {
		m.Loader += data.BatchBytes(e.Source.Fields(), e.microBatch(s))
		if e.Source.Corpus() != s.Data.Source.Corpus() {
			m.Corpus += e.Source.Corpus().Bytes()
		}
	}
	if s.Mesh.Offload != OffloadDisk {
		if p.Settings.Rank == 0 || len(p.Units) > 0 {
			m.Snapshot = snapshotBytes(p)
		}
		m.Snapshot += sum.UnsentBytes
	}
	return m
}

// snapshotBytes is the copy of this rank's part of parameters and state that a checkpoint in the background is written from.
func snapshotBytes(p *plan.Plan) int64 {
	var n int64
	for _, x := range p.Params {
		n += int64(x.Owned.Len()) * int64(x.Whole.DType.Size())
		for _, s := range x.Slots {
			n += s.Place.Type.Bytes()
		}
	}
	return n
}

// memory is what this rank planned, all of it and the part that is the host's where that is counted apart, and the high-water mark of what
// its programs and buffers really use.
func (l *loop) memory() (planned, host, used int64) {
	p := l.engine.plan
	m := PlanMemory(l.spec, p, l.env.Device.ScratchBytes())
	m.Plugins = l.engine.external.scratchBytes() // which knows the number of threads
	host = m.Host()
	planned = m.Total() + host
	used = planned
	var marks [device.NumSpaces]int64
	for _, seg := range p.Segments {
		for i := range seg.Instrs {
			for _, o := range slices.Concat(seg.Instrs[i].In, seg.Instrs[i].Out) {
				marks[o.Space] = max(marks[o.Space], o.Offset+o.Type.Bytes())
			}
		}
	}
	for s := range device.NumSpaces {
		if l.spec.offloaded(p, s) == OffloadDisk {
			continue
		}
		n := int64(1)
		switch s {
		case device.Grads:
			n = int64(p.GradBuffers)
		case device.Sums:
			n = int64(p.SumBuffers)
		}
		used -= n * (p.ArenaBytes[s] - marks[s])
	}
	if l.env.Group != nil {
		used += int64(l.env.Group.StagingPeak()) - m.Communication
	}
	if !l.saver.used() {
		used -= m.Snapshot
	}
	return planned, host, used
}

// peakRSS is the process's largest resident set in bytes, 0 where the system does not tell. foreign is how much of it belongs to
// other ranks.
func peakRSS(foreign int64) int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			f := bytes.Fields(rest)
			kb, _ := strconv.ParseInt(string(f[0]), 10, 64)
			return kb<<10 - foreign
		}
	}
	return 0
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
