package plan

import (
	"fmt"

	"starling/core/comm"
)

// Hybrid sharding (Settings.Shard): parameters are sharded inside a group of neighbouring ranks and replicated between groups, so that
// gathering them, which takes place twice a micro-batch, never leaves a group. Gradients and the optimizer's state stay cut over all
// ranks: rank r updates its own chunk, and the ranks at one place of their groups, the replicas, then give each other what they have
// updated. Against state that is replicated too, this takes less memory and makes no update twice.
//
// The chunks of replicas lie one behind the other in a unit's vector, so that together they are one part of it.

// Hybrid reports whether parameters are sharded inside groups of ranks.
func (s Settings) Hybrid() bool { return s.stage() == 3 && s.Shard > 0 && s.Shard < s.World }

// ShardRanks are the ranks among which this rank's copy of the parameters is sharded, ascending: all where there is one copy.
func (s Settings) ShardRanks() []int { return s.shardRanks(s.Rank) }

func (s Settings) shardRanks(rank int) []int {
	if !s.Hybrid() {
		return s.AllRanks()
	}
	return ascending(rank/s.Shard*s.Shard, s.Shard, 1)
}

// AllRanks are all ranks, ascending.
func (s Settings) AllRanks() []int { return ascending(0, s.World, 1) }

// ReplicaRanks are the ranks that keep the same part of the parameters as this one, itself included, ascending.
func (s Settings) ReplicaRanks() []int { return s.replicaRanks(s.Rank) }

func (s Settings) replicaRanks(rank int) []int {
	if !s.Hybrid() {
		return []int{rank}
	}
	return ascending(rank%s.Shard, s.World/s.Shard, s.Shard)
}

func ascending(first, n, step int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = first + i*step
	}
	return out
}

// ranksInOrder lists the ranks in the order in which their chunks of a sharded unit lie.
func (s Settings) ranksInOrder() []int {
	if !s.Hybrid() {
		return s.AllRanks()
	}
	var out []int
	for place := range s.Shard {
		out = append(out, s.replicaRanks(place)...)
	}
	return out
}

// ShareOrder lists the ranks in the order of their shares of a parameter; none where nothing is sharded.
func (p *Plan) ShareOrder(q *Param) []int {
	if q.Unit < 0 {
		return nil
	}
	return p.Units[q.Unit].order
}

// part is what a rank keeps of a sharded unit: its chunk and those of its replicas.
func (s Settings) part(u *Unit, rank int) comm.Range {
	replicas := s.replicaRanks(rank)
	return comm.Range{Lo: u.Chunks[replicas[0]].Lo, Hi: u.Chunks[replicas[len(replicas)-1]].Hi}
}

// Parts are the parts of a sharded unit that ShardRanks keep, in their order: together the whole.
func (p *Plan) Parts(u *Unit) []comm.Range {
	var out []comm.Range
	for _, r := range p.Settings.ShardRanks() {
		out = append(out, p.Settings.part(u, r))
	}
	return out
}

// ReplicaChunks are the chunks of ReplicaRanks within this rank's part of a unit, in their order.
func (p *Plan) ReplicaChunks(u *Unit) []comm.Range {
	at := p.Settings.part(u, p.Settings.Rank).Lo
	var out []comm.Range
	for _, r := range p.Settings.ReplicaRanks() {
		out = append(out, comm.Range{Lo: u.Chunks[r].Lo - at, Hi: u.Chunks[r].Hi - at})
	}
	return out
}

func (s Settings) checkShard() error {
	switch {
	case s.Shard == 0:
		return nil
	case s.Shard < 1 || s.Shard > s.World || s.World%s.Shard != 0:
		return fmt.Errorf("parallel.mesh(data = %d, shard = %d): shard is the number of neighbouring ranks that share one copy of the parameters, so it must divide data; use shard = %d",
			s.World, s.Shard, s.nearestShard())
	case s.Zero != 3:
		return fmt.Errorf("parallel.mesh(zero = %d, shard = %d): shard is about sharded parameters, so it needs zero = 3; gradients and the optimizer's state are cut over all ranks at every stage",
			s.Zero, s.Shard)
	case s.Hybrid() && s.Compress.Active():
		return fmt.Errorf("parallel.mesh(shard = %d) with compressed gradients: compression is not made for parameters that are kept by groups of ranks; leave out one of the two", s.Shard)
	}
	return nil
}

// nearestShard is the largest number of ranks up to Shard that divides the world.
func (s Settings) nearestShard() int {
	for n := min(max(s.Shard, 1), s.World); n > 1; n-- {
		if s.World%n == 0 {
			return n
		}
	}
	return 1
}
