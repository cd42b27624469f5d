package plan

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// DumpKinds are the kinds of text that Dump knows.
var DumpKinds = []string{"graph", "passes", "program"}

// Dump prints the plan: "graph" the training graph as it was traced, "passes" the graph after each pass, "program" the
// places of parameters and state, the buckets and every segment's instructions.
func (p *Plan) Dump(kind string) (string, error) {
	var b strings.Builder
	switch kind {
	case "graph":
		b.WriteString(p.Passes[0].Graph.String())
	case "passes":
		for _, r := range p.Passes[1:] {
			fmt.Fprintf(&b, "== %s: %s (%d nodes)\n%s\n", r.Pass.Name, r.Pass.Doc, len(r.Graph.Nodes), r.Graph)
		}
	case "program":
		p.dumpProgram(&b)
	default:
		return "", fmt.Errorf("there is no dump %q: use %s", kind, strings.Join(DumpKinds, ", "))
	}
	return b.String(), nil
}

func (p *Plan) dumpProgram(b *strings.Builder) {
	fmt.Fprintf(b, "arenas ")
	for s := range device.NumSpaces {
		if p.ArenaBytes[s] == 0 && (s == device.Sums || s == device.Offload) {
			continue
		}
		times := ""
		if s == device.Grads && p.GradBuffers > 1 {
			times = fmt.Sprintf(" x %d buffers", p.GradBuffers)
		}
		if s == device.Sums {
			times = fmt.Sprintf(" x %d buffers", p.SumBuffers)
		}
		fmt.Fprintf(b, " %v %d%s ", s, p.ArenaBytes[s], times)
	}
	b.WriteString("bytes\n\nparameters\n")
	var rows [][]string
	for i := range p.Params {
		rows = append(rows, paramRow(&p.Params[i]))
	}
	columns(b, rows)
	b.WriteString("\nbuckets\n")
	for _, k := range p.Buckets {
		fmt.Fprintf(b, "  %d  grads+%06x  %s  %s\n", k.Index, k.Place.Offset, bytesString(k.Place.Bytes()), k.Label)
	}
	for _, u := range p.Units {
		kept := ""
		if u.Sharded && p.Settings.Hybrid() {
			kept = fmt.Sprintf(", which keeps %v", u.Held)
		}
		fmt.Fprintf(b, "unit %d  params+%06x  elements %v of %d are this rank's%s  %s\n", u.Index, u.Place.Offset, u.Chunks[p.Settings.Rank], u.Elements, kept, u.Label)
	}
	if len(p.LaneSteps()) > 0 {
		fmt.Fprintf(b, "\nlanes of rank %d of %d\n", p.Settings.Rank, p.Settings.World)
		for _, l := range p.LaneSteps() {
			if p.Rounds != nil {
				fmt.Fprintf(b, "  round %d: lane %d, micro-batches %v after %d idle runs; sums %v, then %d additions\n", l.Round, l.Lane, l.MicroBatches,
					l.Idle, nodesOf(p.Rounds[l.Round]), len(p.Rounds[l.Round].Adds))
				continue
			}
			fmt.Fprintf(b, "  lane %d: micro-batches %v into buffer %d, then %d merges\n", l.Lane, l.MicroBatches, l.Buffer, l.Merges)
		}
	}
	for _, n := range p.Notes {
		fmt.Fprintf(b, "\nnote: %s\n", n)
	}
	names := p.namer()
	for _, l := range p.lowered {
		b.WriteString("\n")
		dumpSegment(b, p.Segments[l.name], names)
	}
}

func nodesOf(r Round) []comm.Range {
	var out []comm.Range
	for _, s := range r.Sums {
		out = append(out, s.Node)
	}
	return out
}

func paramRow(q *Param) []string {
	row := []string{"  $" + q.Name, q.Place.Type.String(), fmt.Sprintf("params+%06x", q.Place.Offset)}
	switch {
	case q.Frozen:
		row = append(row, "frozen")
	case !q.Trained():
		row = append(row, "unreached")
	default:
		var g []string
		for _, u := range q.Uses {
			g = append(g, fmt.Sprintf("%06x", u.Offset))
		}
		row = append(row, "grads+"+strings.Join(g, ","))
		for _, s := range q.Slots {
			row = append(row, fmt.Sprintf("%s state+%06x", s.Name, s.Place.Offset))
		}
		if q.Buffer {
			return append(row, "buffer")
		}
		row = append(row, fmt.Sprintf("group %d", q.Group))
	}
	return row
}

// namer gives operands the names that a reader knows: $ for parameters, ∂ for their gradients, # for state, the names of
// a segment's inputs and outputs, and @ for offsets in Work.
func (p *Plan) namer() func(seg *device.Segment, o device.Operand) string {
	type key struct {
		space  device.Space
		offset int64
	}
	names := map[key]string{}
	for i := range p.Params {
		q := &p.Params[i]
		names[key{device.Params, q.Place.Offset}] = "$" + q.Name
		for u, o := range q.Uses {
			n := "∂" + q.Name
			if len(q.Uses) > 1 {
				n += fmt.Sprintf("·%d", u)
			}
			names[key{device.Grads, o.Offset}] = n
		}
		for _, s := range q.Slots {
			names[key{device.State, s.Place.Offset}] = "#" + s.Key
		}
		if q.updated() && !q.Buffer {
			names[key{device.IO, q.Partials.Offset}] = "partials(" + q.Name + ")"
		}
	}
	if u := p.Segments[SegmentUpdate]; u != nil {
		for g := range p.Groups {
			names[key{device.IO, u.Inputs[InputHyper].Offset + int64(g)*HyperLen*8}] = fmt.Sprintf("hyper[%d]", g)
		}
	}
	for _, l := range p.lowered {
		seg := p.Segments[l.name]
		for _, list := range []map[string]device.Operand{seg.Inputs, seg.Outputs} {
			for _, n := range sortedNames(list) {
				k := key{list[n].Space, list[n].Offset}
				if _, known := names[k]; !known {
					names[k] = "<" + n + ">"
				}
			}
		}
	}
	return func(seg *device.Segment, o device.Operand) string {
		if n, ok := names[key{o.Space, o.Offset}]; ok && o.Space != device.Work {
			return n
		}
		return fmt.Sprintf("@%05x", o.Offset)
	}
}

func sortedNames(m map[string]device.Operand) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func dumpSegment(b *strings.Builder, seg *device.Segment, name func(*device.Segment, device.Operand) string) {
	var flops int64
	for i := range seg.Instrs {
		flops += seg.Instrs[i].FLOPs
	}
	fmt.Fprintf(b, "segment %s: %d instructions, %s, work %d bytes\n", seg.Name, len(seg.Instrs), flopsString(flops), seg.WorkBytes)
	for _, n := range sortedNames(seg.Inputs) {
		fmt.Fprintf(b, "  input  %s %v io+%06x\n", n, seg.Inputs[n].Type, seg.Inputs[n].Offset)
	}
	for _, n := range sortedNames(seg.Outputs) {
		o := seg.Outputs[n]
		fmt.Fprintf(b, "  output %s %v %v+%06x\n", n, o.Type, o.Space, o.Offset)
	}
	var rows [][]string
	for i := range seg.Instrs {
		in := &seg.Instrs[i]
		row := []string{fmt.Sprintf("%04d", i)}
		switch in.Kind {
		case device.Kernel:
			row = append(row, kernelRow(seg, in, name)...)
		case device.Copy, device.Copied:
			row = append(row, copyRow(in)...)
		default:
			row = append(row, bucketRow(in)...)
		}
		rows = append(rows, row)
	}
	columns(b, rows)
}

func kernelRow(seg *device.Segment, in *device.Instr, name func(*device.Segment, device.Operand) string) []string {
	list := func(os []device.Operand) string {
		var s []string
		for _, o := range os {
			s = append(s, name(seg, o))
		}
		return strings.Join(s, " ")
	}
	arrow := "→ "
	if in.Accum {
		arrow = "⇒ " // adds, but for the first micro-batch of a lane
	}
	results := list(in.Out)
	if renewsInputs(in) {
		results = "in place"
	}
	flops := ""
	if in.FLOPs > 0 {
		flops = flopsString(in.FLOPs)
	}
	return []string{in.Op.Name, strings.TrimLeft(list(in.In)+" "+arrow+results, " "), in.Out[0].Type.String(), flops, place(in.Node)}
}

// renewsInputs reports whether an instruction writes all of its several results over inputs, as optimizers do.
func renewsInputs(in *device.Instr) bool {
	for _, o := range in.Out {
		if !slices.ContainsFunc(in.In, func(i device.Operand) bool { return i.Space == o.Space && i.Offset == o.Offset }) {
			return false
		}
	}
	return len(in.Out) > 1
}

// place is a node's block and position, the file by its base name.
func place(n *graph.Node) string {
	pos := n.Pos
	if pos.File != "" {
		pos.File = path.Base(pos.File)
	}
	return strings.TrimSpace(n.Block + "  " + pos.String())
}

func bucketRow(in *device.Instr) []string {
	what := "bucket"
	if in.Collective == AllGather {
		what = "unit"
	}
	size := fmt.Sprintf("%s %d (%s)", what, in.Bucket, bytesString(in.Out[0].Type.Bytes()))
	switch in.Kind {
	case device.Round:
		return []string{"round", size + " to " + in.Rounding.String(), "", "", in.When.String()}
	case device.Fold:
		how := " of finished lanes"
		if in.Rounding != tensor.Invalid {
			how += " in " + in.Rounding.String()
		}
		return []string{"fold", size + how, "", "", in.When.String()}
	case device.Renew:
		return []string{"renew", "what " + size + " completes", "", "", in.When.String()}
	case device.Start:
		return []string{"start " + in.Collective, size + " group " + in.Group, "", "", in.When.String()}
	}
	return []string{"wait " + in.Collective, size + " group " + in.Group, "", "", in.When.String()}
}

func copyRow(in *device.Instr) []string {
	if in.Kind == device.Copied {
		return []string{"copied", fmt.Sprintf("copy %d", in.Bucket)}
	}
	from, to := in.In[0], in.Out[0]
	return []string{"copy", fmt.Sprintf("copy %d (%s) %v+%05x → %v+%05x", in.Bucket, bytesString(from.Bytes()), from.Space, from.Offset, to.Space, to.Offset), from.Type.String()}
}

// columns prints rows with aligned columns, counting runes.
func columns(b *strings.Builder, rows [][]string) {
	var width []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell + strings.Repeat(" ", width[i]-len([]rune(cell))+2))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}
