package plan

import (
	"fmt"
	"slices"

	"starling/core/device"
)

// checkRenewals checks the parts into which the norm and update segments are cut: that they are the whole, in order, that none works on
// a bucket that no part so far has waited for, and that what they start has groups of its own, as ranks run them at moments of their own.
func checkRenewals(p *Plan) error {
	if p.Renewals == nil {
		return nil
	}
	norm, update := p.Segments[SegmentNorm].Instrs, p.Segments[SegmentUpdate].Instrs
	if len(p.Renewals) != len(p.Buckets)+1 {
		return fmt.Errorf("plan check: %d parts of the update for %d buckets", len(p.Renewals), len(p.Buckets))
	}
	if err := checkFigures(p.Segments[SegmentMicro], p.Announce); err != nil {
		return err
	}
	inPass := map[string]bool{} // groups
	for _, in := range p.Segments[SegmentMicro].Instrs {
		if in.Kind == device.Start {
			inPass[in.Group] = true
		}
	}
	waited := make([]bool, len(p.Buckets))
	atNorm, atUpdate := 0, 0
	for k, r := range p.Renewals {
		if r.Norm.Lo != atNorm || r.Update.Lo != atUpdate || r.Norm.Hi < atNorm || r.Update.Hi < atUpdate {
			return fmt.Errorf("plan check: part %d of the update is %v and %v, want what follows %d and %d", k, r.Norm, r.Update, atNorm, atUpdate)
		}
		atNorm, atUpdate = r.Norm.Hi, r.Update.Hi
		for _, in := range norm[r.Norm.Lo:r.Norm.Hi] {
			if in.Kind == device.Wait {
				waited[in.Bucket] = true
			}
		}
		if k < len(waited) && !waited[k] {
			return fmt.Errorf("plan check: part %d of the update does not wait for its bucket", k)
		}
		for _, in := range update[r.Update.Lo:r.Update.Hi] {
			if in.Kind == device.Start && inPass[in.Group] {
				return fmt.Errorf("plan check: part %d of the update starts a collective in group %s, among those of the micro segment: ranks would not start them in one order", k, in.Group)
			}
			for _, o := range in.In {
				for b, bucket := range p.Buckets {
					place := bucket.Sum
					if bucket.Unit < 0 {
						place = bucket.Place
					}
					if in.Kind == device.Kernel && overlap(place, o) && !waited[b] {
						return fmt.Errorf("plan check: part %d of the update uses bucket %d before it was waited for", k, b)
					}
				}
			}
		}
	}
	if atNorm != len(norm) || atUpdate != len(update) {
		return fmt.Errorf("plan check: the parts of the update leave out instructions from %d of %d and %d of %d", atNorm, len(norm), atUpdate, len(update))
	}
	return nil
}

// renew checks that a bucket's update has its turn, and that nothing needs the old parameters any more: what it changes holds nothing
// afterwards.
func (c *checker) renew(in *device.Instr) error {
	b := in.Bucket
	if c.lowered.name != SegmentMicro || c.plan.Renewals == nil || in.When != device.LastOnRank || b != c.renewed || b >= len(c.plan.Buckets) {
		return fmt.Errorf("bucket %d lets nothing be updated, or not at that moment", b)
	}
	c.renewed++
	if !c.started[b] {
		return fmt.Errorf("what bucket %d completes is updated before the bucket has left", b)
	}
	for _, q := range c.plan.trained() {
		if c.plan.lastBucket(q) != b {
			continue
		}
		if !q.Sharded {
			c.write(q.Place, nil)
			continue
		}
		if c.arrival[q.Unit] {
			return fmt.Errorf("unit %d is updated while it is being gathered", q.Unit)
		}
		c.gone[q.Unit] = true
	}
	return nil
}

// checkFigures checks that loss and weight are known before a bucket leaves: they travel ahead of it.
func checkFigures(micro *device.Segment, bucket int) error {
	first := slices.IndexFunc(micro.Instrs, func(in device.Instr) bool {
		return in.Kind == device.Start && in.Collective != AllGather && in.Bucket >= bucket
	})
	if first < 0 {
		return nil // they travel at the end
	}
	for _, name := range []string{OutputLoss, OutputWeight} {
		place := micro.Outputs[name]
		for _, in := range micro.Instrs[first:] {
			if slices.ContainsFunc(in.Out, func(o device.Operand) bool { return overlap(place, o) }) {
				return fmt.Errorf("plan check: the %s is computed after bucket %d has left, ahead of which it travels", name, bucket)
			}
		}
	}
	return nil
}
