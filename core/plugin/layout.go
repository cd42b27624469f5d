package plugin

import (
	"os"

	"starling/sdk"
	"starling/sdk/shm"
)

const (
	// taskElements is the size of an element-wise task: gradient, two slots of state, and the results stay within a core's second-level
	// cache, and what a task costs beside is little.
	taskElements = 8 << 10
	// maxScratch bounds the scratch memory of element-wise optimizers.
	maxScratch = 8 << 20
)

// task is a range of a Range.
type task struct {
	at     *Range
	lo, hi int // within the Range
}

// bytes is what a task takes in a slot.
func (t task) bytes(elementwise bool) int64 {
	n := aligned(t.hi - t.lo)
	for _, s := range t.at.State {
		if elementwise {
			n += aligned(t.hi - t.lo)
		} else {
			n += aligned(s.Elements)
		}
	}
	return n
}

// aligned is the size of n elements, rounded up to a cache line.
func aligned(n int) int64 { return (4*int64(n) + 63) / 64 * 64 }

// layout is how an update is cut into tasks, and where the slots for their results lie in the scratch memory.
type layout struct {
	tasks   []task
	journal bool  // the plugin commits results itself
	size    int64 // most elements of a task, 0: whole tensors
	page    int64 // offset of what follows the header
	first   int64 // offset of slot 0
	stride  int64
	count   int64 // slots
}

// layOut fills in Threads and TaskElements where they are left open.
func (c *UpdaterConfig) layOut() layout {
	elementwise := c.Use.Manifest.Optimizer.Granularity == sdk.Elementwise
	l := layout{journal: elementwise && c.Use.Manifest.Optimizer.Journal}
	if c.TaskElements == 0 {
		c.TaskElements = taskElements
	}
	c.Threads = max(1, c.Threads)
	if elementwise {
		l.size = int64(c.TaskElements)
	}
	slot := int64(0)
	for i := range c.Ranges {
		r := &c.Ranges[i]
		n := r.To - r.From
		step := n
		if elementwise {
			step = c.TaskElements
		}
		for lo := 0; lo < n; lo += step {
			t := task{r, lo, min(n, lo+step)}
			l.tasks = append(l.tasks, t)
			slot = max(slot, t.bytes(elementwise))
		}
	}
	l.page = int64(max(os.Getpagesize(), shm.HeaderBytes))
	l.first, l.stride = l.page, (max(slot, 1)+l.page-1)/l.page*l.page
	if l.journal {
		l.first += (4*int64(len(l.tasks)) + l.page) / l.page * l.page
	}
	l.count = 1
	if elementwise {
		l.count = max(2, min(int64(4*c.Threads), maxScratch/l.stride, shm.MaxSlots))
	}
	if l.journal {
		l.count = max(1, min(int64(c.Threads), maxScratch/l.stride, shm.MaxSlots))
	}
	return l
}

func (l *layout) bytes() int64 { return l.first + l.count*l.stride }

// ScratchBytes is the memory that an Updater of cfg takes beside parameters, gradients and state. The offsets of its ranges are not looked at.
func ScratchBytes(cfg UpdaterConfig) int64 {
	l := cfg.layOut()
	return l.bytes()
}
