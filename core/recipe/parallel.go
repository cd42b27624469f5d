package recipe

import (
	"errors"
	"math"
	"path"
	"strconv"
	"strings"

	"go.starlark.net/starlark"

	"starling/core/comm/machine"
	"starling/core/compress"
	"starling/core/plan"
	"starling/core/train"
)

func parallelDeclarations() []declaration {
	return []declaration{{"mesh(data = 1, bucket_mb = 25.0, first_bucket_mb = 1.0, threads = 0, timeout = 60.0, zero = 0, overlap = True, keep_gathered = False, keep_whole_kb = 0.0, memory = None, offload = None, reduction = \"canonical\", compress = None, shard = 0, offload_activations = False, host_memory = None, hosts = None)",
		"placement, which changes no result but for reduction and compress: data-parallel ranks, the size of gradient buckets, CPU threads a rank (0: the cores shared out), seconds until a collective gives up; " +
			"zero shards over the ranks 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too; overlap lets communication run beside computation; with zero = 3 keep_gathered " +
			"keeps a block's parameters from its forward to its backward pass, and groups of parameters below keep_whole_kb stay whole, and shard neighbouring ranks, such as those of a host, keep one copy of the parameters among them (0: all ranks do); a run that needs more than memory on a rank, such as \"2GB\", is refused; " +
			"reduction = \"fast\" sums gradients in whatever order is quickest (\"ring\" and \"doubling\" force one), so that weights depend on the ranks, where \"direct\" and \"hierarchical\" force an algorithm of the canonical order; offload = \"disk\" keeps the optimizer's state, and sharded parameters, in files of the run's folder, \"host\" in the host's memory, which memory then does not count and host_memory bounds; offload_activations = True keeps activations there too between the passes; compress is how gradients are compressed between ranks, such as compress.int8(); " +
			"hosts names the host of each rank, such as [\"a\"] * 4 + [\"b\"] * 4, where several are declared on one machine: ranks of one name share memory, and sums are added inside a host first", makeMesh}}
}

func recomputeDeclarations() []declaration {
	return []declaration{
		{"all()", "compute every block's activations again for the backward pass, and keep only what passes from block to block", func(c *call) (starlark.Value, error) {
			if err := c.unpack(); err != nil {
				return nil, err
			}
			return c.newSetting("recompute", plan.Recompute{All: true}), nil
		}},
		{"every(k)", "every k-th block, from the first on", func(c *call) (starlark.Value, error) {
			var r plan.Recompute
			if err := c.unpack(&r.Every); err != nil {
				return nil, err
			}
			if r.Every < 1 {
				return nil, c.bad("k", "k = %d must be at least 1", r.Every)
			}
			return c.newSetting("recompute", r), nil
		}},
		{"blocks(pattern)", `the blocks whose name matches, such as "h.*" or "h.3"`, func(c *call) (starlark.Value, error) {
			var pattern string
			if err := c.unpack(&pattern); err != nil {
				return nil, err
			}
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
				return nil, c.bad("pattern", "pattern = %q is no pattern; use names of blocks with * and ?", pattern)
			}
			return c.newSetting("recompute", plan.Recompute{Blocks: []string{pattern}}), nil
		}},
		{"budget(bytes)", `as few blocks as it takes for activations to fit, such as budget("2GB")`, func(c *call) (starlark.Value, error) {
			var size string
			if err := c.unpack(&size); err != nil {
				return nil, err
			}
			n, err := parseBytes(size)
			if err != nil {
				return nil, c.bad("bytes", "bytes = %q: %v", size, err)
			}
			return c.newSetting("recompute", plan.Recompute{Budget: n}), nil
		}},
	}
}

// parseBytes reads a size such as 2GB, 512MB or 100KB; units are powers of 1024.
func parseBytes(s string) (int64, error) {
	unit := int64(0)
	number := s
	for name, u := range map[string]int64{"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40} {
		if rest, ok := strings.CutSuffix(s, name); ok {
			number, unit = rest, u
		}
	}
	f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || unit == 0 || !(f > 0) || f*float64(unit) >= math.MaxInt64 {
		return 0, errors.New(`write a number and KB, MB, GB or TB, such as "2GB"`)
	}
	return int64(f * float64(unit)), nil
}

func makeMesh(c *call) (starlark.Value, error) {
	var m train.Mesh
	var overlap bool
	var memory, hostMemory string
	var comp *setting
	if err := c.unpack(&m.Data, &m.BucketMB, &m.FirstBucket, &m.Threads, &m.TimeoutSec, &m.Zero, &overlap, &m.KeepGathered, &m.KeepWholeKB, &memory, &m.Offload, &m.Reduction,
		kindOf{"compression", "a compression such as compress.int8()", &comp}, &m.Shard, &m.OffloadWork, &hostMemory, &m.Hosts); err != nil {
		return nil, err
	}
	if m.Offload != "" && m.Offload != train.OffloadHost && m.Offload != train.OffloadDisk {
		return nil, c.bad("offload", "offload = %q must be \"host\" or \"disk\"", m.Offload)
	}
	for _, limit := range []struct {
		name, text string
		bytes      *int64
	}{{"memory", memory, &m.MemoryBytes}, {"host_memory", hostMemory, &m.HostBytes}} {
		if limit.text == "" {
			continue
		}
		n, err := parseBytes(limit.text)
		if err != nil {
			return nil, c.bad(limit.name, "%s = %q: %v", limit.name, limit.text, err)
		}
		*limit.bytes = n
	}
	if m.OffloadWork && m.Offload == "" {
		return nil, c.bad("offload_activations", "offload_activations = True needs offload = \"host\" or \"disk\", where they go")
	}
	if m.HostBytes > 0 && m.Offload != train.OffloadHost {
		return nil, c.bad("host_memory", "host_memory bounds what offload = \"host\" keeps in the host's memory: without it all counts to memory")
	}
	m.NoOverlap = !overlap
	if comp != nil {
		m.Compress = payload[compress.Config](comp)
	}
	if m.Zero < 0 || m.Zero > 3 {
		return nil, c.bad("zero", "zero = %d must be 0 (nothing is sharded), 1 (the optimizer's state), 2 (gradients too) or 3 (parameters too)", m.Zero)
	}
	if (m.KeepGathered || m.KeepWholeKB != 0) && m.Zero != 3 {
		return nil, c.bad("zero", "keep_gathered and keep_whole_kb are about sharded parameters: they need zero = 3, not %d", m.Zero)
	}
	if m.Shard < 0 {
		return nil, c.bad("shard", "shard = %d must be at least 0 (all ranks keep one copy of the parameters among them)", m.Shard)
	}
	if !(m.KeepWholeKB >= 0) || math.IsInf(m.KeepWholeKB, 0) {
		return nil, c.bad("keep_whole_kb", "keep_whole_kb = %v must be a finite number of at least 0", m.KeepWholeKB)
	}
	for _, n := range []struct {
		name  string
		value float64
	}{{"bucket_mb", m.BucketMB}, {"first_bucket_mb", m.FirstBucket}, {"timeout", m.TimeoutSec}} {
		if !(n.value > 0) || math.IsInf(n.value, 0) {
			return nil, c.bad(n.name, "%s = %v must be a finite number above 0", n.name, n.value)
		}
	}
	if m.Threads < 0 {
		return nil, c.bad("threads", "threads = %d must be at least 0", m.Threads)
	}
	if m.Data < 1 {
		return nil, c.bad("data", "data = %d must be at least 1", m.Data)
	}
	if m.Hosts != nil && len(m.Hosts) != m.Data {
		return nil, c.bad("hosts", "hosts names %d hosts for data = %d ranks; name the host of each rank, such as [\"a\"] * %d", len(m.Hosts), m.Data, m.Data)
	}
	for _, h := range m.Hosts {
		if err := machine.CheckHostName(h); err != nil {
			return nil, c.bad("hosts", "hosts: %v", err)
		}
	}
	return c.newSetting("parallel", m), nil
}
