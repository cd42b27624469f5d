package plan

import (
	"fmt"
	"slices"
	"strings"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// Names of values in the graphs of the norm and update segments. Each is followed by a parameter's name, a state key or
// a row; gradients are named as in the training graph.
const (
	sumPrefix      = "sum "      // the whole gradient
	partialsPrefix = "partials " // the norm of its blocks, or what leads to it
	paramPrefix    = "param "    // the exact parameter before or after its update
	weightPrefix   = "weight "   // the parameter as it is used, rounded, after its update
	statePrefix    = "state "    // a slot before or after it
	hyperPrefix    = "hyper "    // a row of the table of hyper-parameters
)

// buildNorm lowers what follows the sum over lanes: the uses of a tied parameter are added into the first, in trace
// order, then the norm's partial results of every gradient's blocks are taken. Parameters come in the order of the buckets that
// complete them, and each bucket is waited for right before its first use, so that this work overlaps with the buckets
// still on their way.
func (p *Plan) buildNorm(*State) error {
	trained := slices.DeleteFunc(p.trained(), func(q *Param) bool { return !q.updated() })
	slices.SortStableFunc(trained, func(a, b *Param) int { return p.lastBucket(a) - p.lastBucket(b) })
	b := graph.NewBuilder()
	l := &lowering{plan: p, g: b.G, where: binding{p.reducedPlace, p.normPlace}, preset: map[*graph.Value]device.Operand{}}
	for _, q := range trained {
		if q.Buffer && len(q.Uses) == 1 {
			continue // nothing is added, and its norm means nothing
		}
		b.Pos, b.Block = q.Pos, q.Block
		before := len(b.G.Nodes)
		sum, err := sumOfUses(b, q, l.preset)
		if err != nil {
			return err
		}
		for _, n := range b.G.Nodes[before:] {
			p.turns[n] = p.lastBucket(q)
		}
		if q.Buffer {
			continue
		}
		v, err := b.Apply(p.Settings.Norm.op(), nil, sum)
		if err != nil {
			return err
		}
		b.Output(partialsPrefix+q.Name, v[0])
		p.turns[v[0].Def] = p.lastBucket(q)
		q.Partials = p.allocIO(v[0].Type)
	}
	if err := graph.Verify(b.G); err != nil {
		return fmt.Errorf("plan: the norm's graph is not valid: %w", err)
	}
	waited := 0
	wait := func(upTo int) {
		for ; p.Settings.World > 1 && waited < upTo; waited++ {
			l.seg.Instrs = append(l.seg.Instrs, device.Instr{Kind: device.Wait, Bucket: waited,
				Out: []device.Operand{p.Buckets[waited].Place}, Group: dataGroup, Collective: p.reduction()})
		}
	}
	l.before = func(n *graph.Node) {
		for _, v := range n.In {
			if a, ok := v.Def.Attrs.(graph.InputAttrs); ok {
				wait(p.bucketOf[a.Name] + 1)
			}
		}
	}
	l.finish = func() { wait(len(p.Buckets)) } // of those that this rank owns nothing of
	return l.lower(SegmentNorm)
}

// sumOfUses adds the gradients of a parameter's uses, each sum written over the first use.
func sumOfUses(b *graph.Builder, q *Param, preset map[*graph.Value]device.Operand) (*graph.Value, error) {
	var sum *graph.Value
	for use := range q.Uses {
		v, err := b.Apply(graph.OpInput, graph.InputAttrs{Name: Gradient{q.Name, use}.Output(), DType: tensor.F32, Shape: graph.MakeDims(q.ownedType().Shape)})
		if err != nil {
			return nil, err
		}
		if sum == nil {
			sum = v[0]
			continue
		}
		if v, err = b.Apply(graph.OpAccumulate, nil, sum, v[0]); err != nil {
			return nil, err
		}
		sum = v[0]
		preset[sum] = q.Reduced[0]
	}
	if len(q.Uses) > 1 {
		b.Output(sumPrefix+q.Name, sum)
	}
	return sum, nil
}

// buildUpdate lowers the optimizer: its operation on every parameter, in order of name.
func (p *Plan) buildUpdate(*State) error {
	b := graph.NewBuilder()
	table := p.allocIO(graph.Type{DType: tensor.F64, Shape: tensor.Shape{p.Groups, HyperLen}})
	rows := make([]*graph.Value, p.Groups)
	for g := range rows {
		v, err := b.Apply(graph.OpInput, graph.InputAttrs{Name: hyperName(g), DType: tensor.F64, Shape: graph.MakeDims([]int{HyperLen})})
		if err != nil {
			return err
		}
		rows[g] = v[0]
	}
	for _, q := range p.inUpdateOrder() {
		before := len(b.G.Nodes)
		apply := p.applyUpdate
		if q.External() {
			apply = p.roundRenewed
		}
		if err := apply(b, q, rows); err != nil {
			return fmt.Errorf("optimizer for parameter %s: %w", q.Name, err)
		}
		for _, n := range b.G.Nodes[before:] {
			p.turns[n] = p.turn(q)
		}
	}
	if err := graph.Verify(b.G); err != nil {
		return fmt.Errorf("plan: the update's graph is not valid: %w", err)
	}
	place := func(name string) (device.Operand, bool) { return p.updatePlace(name, table) }
	l := &lowering{plan: p, g: b.G, where: binding{place, place}}
	if len(p.Units) > 0 {
		p.gatherUpdated(l)
	}
	if err := l.lower(SegmentUpdate); err != nil {
		return err
	}
	l.seg.Inputs[InputHyper] = table
	return nil
}

// inUpdateOrder lists what this rank updates: by name, or where state is sharded by unit, or where buckets are updated as they arrive by
// the bucket that completes it.
func (p *Plan) inUpdateOrder() []*Param {
	out := slices.DeleteFunc(p.trained(), func(q *Param) bool { return !q.updated() })
	slices.SortStableFunc(out, func(a, b *Param) int { return p.turn(a) - p.turn(b) })
	return out
}

// turn is when a parameter's update has its turn: with its unit, or with the bucket that completes its gradient.
func (p *Plan) turn(q *Param) int {
	if p.early() {
		return p.lastBucket(q)
	}
	return q.Unit
}

// unitTurn is the turn of a trained unit: all its members have the same.
func (p *Plan) unitTurn(u *Unit) int { return p.turn(p.Param(u.Members[0].Param)) }

// gatherUpdated makes every rank whole again after the update, unit by unit: while a unit travels the next one is updated.
// Units whose parameters stay sharded are gathered when they are used; of those, replicas complete each other's part.
func (p *Plan) gatherUpdated(l *lowering) {
	var whole []*Unit
	for _, u := range p.Units {
		if u.Trained && (!u.Sharded || p.Settings.Hybrid()) {
			whole = append(whole, u)
		}
	}
	slices.SortStableFunc(whole, func(a, b *Unit) int { return p.unitTurn(a) - p.unitTurn(b) })
	started := 0
	start := func(upTo int) { // every rank starts the same ones in the same order, whatever it owns
		for ; started < len(whole) && p.unitTurn(whole[started]) < upTo; started++ {
			u := whole[started]
			l.seg.Instrs = append(l.seg.Instrs, p.gatherInstr(device.Start, u, u.Place))
		}
	}
	l.before = func(n *graph.Node) { start(p.turns[n]) }
	l.finish = func() {
		start(max(len(p.Units), len(p.Buckets)))
		for _, u := range whole {
			l.seg.Instrs = append(l.seg.Instrs, p.gatherInstr(device.Wait, u, u.Place))
		}
	}
}

func hyperName(group int) string { return fmt.Sprintf("%s%d", hyperPrefix, group) }

func (p *Plan) applyUpdate(b *graph.Builder, q *Param, rows []*graph.Value) error {
	b.Pos, b.Block = q.Pos, q.Block
	input := func(name string, t graph.Type) (*graph.Value, error) {
		v, err := b.Apply(graph.OpInput, graph.InputAttrs{Name: name, DType: t.DType, Shape: graph.MakeDims(t.Shape)})
		if err != nil {
			return nil, err
		}
		return v[0], nil
	}
	w, err := input(paramPrefix+q.Name, q.ownedType())
	if err != nil {
		return err
	}
	g, err := input(Gradient{q.Name, 0}.Output(), q.ownedType())
	if err != nil {
		return err
	}
	in := []*graph.Value{w, g}
	for _, s := range q.Slots {
		v, err := input(statePrefix+s.Key, s.Place.Type)
		if err != nil {
			return err
		}
		in = append(in, v)
	}
	if !q.Buffer {
		in = append(in, rows[q.Group])
	}
	out, err := b.Apply(q.update.Op, q.update.Attrs, in...)
	if err != nil {
		return err
	}
	if len(out) != 1+len(q.Slots) {
		return fmt.Errorf("%s has %d results for the parameter and %d slots", q.update.Op.Name, len(out), len(q.Slots))
	}
	b.Output(paramPrefix+q.Name, out[0])
	if err := p.roundParam(b, q, out[0]); err != nil {
		return err
	}
	for i, s := range q.Slots {
		b.Output(statePrefix+s.Key, out[1+i])
	}
	return nil
}

// roundParam makes the rounded form of a renewed parameter, which the model uses under half precision.
func (p *Plan) roundParam(b *graph.Builder, q *Param, exact *graph.Value) error {
	if !p.Settings.half() || q.Buffer {
		return nil
	}
	w, err := b.Apply(graph.OpCast, graph.CastAttrs{To: p.Settings.Half}, exact)
	if err != nil {
		return err
	}
	b.Output(weightPrefix+q.Name, w[0])
	return nil
}

// roundRenewed is what is left to do for a parameter that was renewed outside the program.
func (p *Plan) roundRenewed(b *graph.Builder, q *Param, _ []*graph.Value) error {
	if !p.Settings.half() {
		return nil
	}
	b.Pos, b.Block = q.Pos, q.Block
	w, err := b.Apply(graph.OpInput, graph.InputAttrs{Name: paramPrefix + q.Name, DType: tensor.F32, Shape: graph.MakeDims(q.ownedType().Shape)})
	if err != nil {
		return err
	}
	return p.roundParam(b, q, w[0])
}

// normPlace finds the places of the norm segment's results.
func (p *Plan) normPlace(name string) (device.Operand, bool) {
	if q := p.paramAfter(name, sumPrefix); q != nil {
		return q.Reduced[0], true
	}
	if q := p.paramAfter(name, partialsPrefix); q != nil {
		return q.Partials, true
	}
	return device.Operand{}, false
}

// updatePlace finds the places of the update segment's inputs and results.
func (p *Plan) updatePlace(name string, table device.Operand) (device.Operand, bool) {
	if q := p.paramAfter(name, paramPrefix); q != nil {
		return q.Exact, true
	}
	if q := p.paramAfter(name, weightPrefix); q != nil {
		return q.OwnedPlace(), true
	}
	if key, ok := strings.CutPrefix(name, statePrefix); ok {
		if q := p.Param(key[:max(0, strings.LastIndexByte(key, '/'))]); q != nil {
			for _, s := range q.Slots {
				if s.Key == key {
					return s.Place, true
				}
			}
		}
	}
	if row, ok := strings.CutPrefix(name, hyperPrefix); ok {
		g := 0
		if _, err := fmt.Sscan(row, &g); err == nil {
			return device.Operand{Type: graph.Type{DType: tensor.F64, Shape: tensor.Shape{HyperLen}}, Space: device.IO,
				Offset: table.Offset + int64(g)*HyperLen*8}, true
		}
	}
	return p.reducedPlace(name)
}

// reducedPlace finds this rank's part of a gradient's sum by its output's name.
func (p *Plan) reducedPlace(name string) (device.Operand, bool) {
	o, ok := p.reduced[name]
	return o, ok
}

func (p *Plan) paramAfter(name, prefix string) *Param {
	if rest, ok := strings.CutPrefix(name, prefix); ok {
		return p.Param(rest)
	}
	return nil
}

// trained lists the parameters that are trained, in order of name.
func (p *Plan) trained() []*Param {
	var out []*Param
	for i := range p.Params {
		if q := &p.Params[i]; q.Trained() {
			out = append(out, q)
		}
	}
	return out
}

// lastBucket is the bucket that completes a parameter's gradient.
func (p *Plan) lastBucket(q *Param) int {
	last := 0
	for use := range q.Uses {
		last = max(last, p.bucketOf[Gradient{q.Name, use}.Output()])
	}
	return last
}
