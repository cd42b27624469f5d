package compress

import (
	"starling/sdk/vec"
)

// Stream compresses one contributor's part of one vector, step after step.
type Stream struct {
	cfg    Config
	codec  codec
	sparse *sparseCodec // the codec, if it is that

	update  int
	inverse float32 // of what the gradient is divided by

	rest     pair // what has not been sent
	momentum pair // of DGC
	owned    pair // what the owner of a chunk has not returned of its sum

	// gaps are the elements of a foreign method's vector that belong to nothing, and ownedGaps those of the owned chunk.
	gaps, ownedGaps [][2]int
}

// pair is state of which a step may work on a copy.
type pair struct{ kept, work []float32 }

func newPair(n int, copied bool) pair {
	p := pair{kept: make([]float32, n)}
	p.work = p.kept
	if copied {
		p.work = make([]float32, n)
	}
	return p
}

func (p pair) copied() bool { return len(p.kept) > 0 && &p.kept[0] != &p.work[0] }

func (p pair) begin() {
	if p.copied() {
		copy(p.work, p.kept)
	}
}

func (p pair) commit() {
	if p.copied() {
		copy(p.kept, p.work)
	}
}

// NewStream makes a stream for n elements, of whose sum this contributor owns and returns a chunk of owned elements; 0 where
// sums stay with their owners. All state is 0.
func NewStream(cfg Config, n, owned int) *Stream {
	s := &Stream{cfg: cfg, inverse: 1, rest: newPair(n, cfg.Transactional), owned: newPair(owned, cfg.Transactional)}
	switch cfg.Kind {
	case Int8:
		s.codec = int8Codec{cfg.Block}
	case BF16:
		s.codec = &bf16Codec{}
	case Foreign: // see NewForeign
	default:
		s.sparse = &sparseCodec{count: func(n int) int { return cfg.count(n, s.update) }}
		s.codec = s.sparse
	}
	if cfg.Kind == DGC {
		s.momentum = newPair(n, cfg.Transactional)
	}
	return s
}

// StateBytes is the size of a stream's state.
func (c Config) StateBytes(n, owned int) int64 {
	elements := n + owned
	if c.Kind == DGC {
		elements += n
	}
	return 4 * int64(elements)
}

// Kept is the memory that state of so many bytes takes, with the copy that a step works on.
func (c Config) Kept(state int64) int64 {
	if c.Transactional {
		return 2 * state
	}
	return state
}

// Begin starts a step: which update it is, and what its gradient is to be divided by.
func (s *Stream) Begin(update int, by float64) {
	s.update = update
	s.Divide(by)
	s.rest.begin()
	s.momentum.begin()
	s.owned.begin()
}

// Divide says what the step's gradient is to be divided by, where that was not known at its beginning.
func (s *Stream) Divide(by float64) { s.inverse = float32(1 / by) }

// Commit makes the step's effects last.
func (s *Stream) Commit() {
	s.rest.commit()
	s.momentum.commit()
	s.owned.commit()
}

// Size is the number of bytes that n elements make in this step.
func (s *Stream) Size(n int) int { return s.cfg.Size(n, s.update) }

// Send compresses the sum of own, which are elements from at on of the vector, into dst, which has their Size.
func (s *Stream) Send(dst []byte, own [][]float32, at int) error {
	n := len(own[0])
	rest := s.rest.work[at:][:n]
	factor := s.inverse
	if s.cfg.Kind != DGC {
		for _, g := range own {
			addScaled(rest, g, factor)
		}
		return s.encode(dst, rest, s.gaps, at)
	}
	u := s.momentum.work[at:][:n]
	s.accelerate(u, rest, own, factor)
	if err := s.codec.encode(dst, rest); err != nil {
		return err
	}
	for _, at := range s.sparse.picked { // momentum factor masking
		u[at] = 0
	}
	return nil
}

// encode compresses x, elements lo … of what has these gaps. A gap counts as zeros, whatever a foreign method made of it before.
func (s *Stream) encode(dst []byte, x []float32, gaps [][2]int, lo int) error {
	fill(x, gaps, lo)
	err := s.codec.encode(dst, x)
	fill(x, gaps, lo)
	return err
}

// fill clears the gaps of x, elements lo … of what has them.
func fill(x []float32, gaps [][2]int, lo int) {
	for _, g := range gaps {
		if a, b := max(g[0]-lo, 0), min(g[1]-lo, len(x)); a < b {
			clear(x[a:b])
		}
	}
}

// accelerate adds the gradient to the momentum u, and the momentum to v.
func (s *Stream) accelerate(u, v []float32, own [][]float32, factor float32) {
	m := float32(s.cfg.Momentum)
	if !s.cfg.Nesterov {
		vec.Scale(u, u, m)
		for _, g := range own {
			addScaled(u, g, factor)
		}
		vec.AddTo(v, u)
		return
	}
	for _, g := range own {
		addScaled(u, g, factor)
		addScaled(v, g, factor)
	}
	vec.Scale(u, u, m)
	vec.AddTo(v, u)
}

func addScaled(dst, x []float32, factor float32) {
	if factor == 1 {
		vec.AddTo(dst, x)
		return
	}
	vec.Axpy(dst, x, factor)
}

// Receive writes what a contributor, or an owner, has sent to dst.
func (s *Stream) Receive(dst []float32, src []byte) error { return s.codec.decode(dst, src) }

// Return compresses this owner's sum into dst. What is lost joins the next one.
func (s *Stream) Return(dst []byte, sum []float32) error {
	vec.AddTo(s.owned.work, sum)
	return s.encode(dst, s.owned.work, s.ownedGaps, 0)
}

// Absorb is the step of a contributor that is alone: own becomes the whole gradient, with all that has not been sent.
func (s *Stream) Absorb(own []float32) {
	factor := s.inverse
	rest := s.rest.work
	if s.cfg.Kind == DGC {
		s.accelerate(s.momentum.work, rest, [][]float32{own}, factor)
	} else {
		addScaled(rest, own, factor)
	}
	copy(own, rest)
	vec.AddTo(own[:len(s.owned.work)], s.owned.work)
	clear(rest)
	clear(s.owned.work)
}

// Restore takes back elements from lo on of a sum that was delivered but not used.
func (s *Stream) Restore(sum []float32, lo int) { vec.AddTo(s.rest.work[lo:lo+len(sum)], sum) }

// Rest, Momentum and Owned are the state, to be stored and loaded between steps: what was not sent of the vector, DGC's
// momentum of it (else nil), and what was not returned of the owned chunk.
func (s *Stream) Rest() []float32     { return s.rest.kept }
func (s *Stream) Momentum() []float32 { return s.momentum.kept }
func (s *Stream) Owned() []float32    { return s.owned.kept }
