package compress

import (
	"math"

	"starling/sdk/vec"
)

// Matrix is a matrix in a vector: Rows × Cols elements from At on, row by row. Key seeds its first factor.
type Matrix struct {
	At, Rows, Cols int
	Key            uint64
}

// Factors compresses one contributor's part of one vector by PowerSGD: a matrix M is sent as P = M·Q, whose sum over the
// contributors is made orthonormal, and Mᵀ·P, whose sum is the next step's Q. What is no matrix, or would not become smaller,
// is sent as it is.
type Factors struct {
	cfg     Config
	places  map[int]int // where a matrix's Q begins, by At; it has room for the largest rank that the matrix is sent at
	layouts map[int]*layout
	*layout // of this step

	inverse float32

	rest    pair
	q       pair
	payload []float32
	p       []float32 // of one matrix
}

// layout is what is sent of a vector at one rank.
type layout struct {
	mats  []factored
	dense [][2]int // ranges of elements that are sent as they are
	// first and second are how many float32 the two sums have. The dense ranges are in the first, from behind on.
	first, second, behind int
}

type factored struct {
	Matrix
	rank int
	p, q int // where its P begins in the first sum, and Mᵀ·P in the second
}

// compressible reports whether the factors are smaller than the matrix.
func (m Matrix) compressible(rank int) bool {
	return rank <= min(m.Rows, m.Cols) && rank*(m.Rows+m.Cols) < m.Rows*m.Cols
}

// lay makes the layout of n elements, of which the matrices are known; they ascend and do not overlap.
func lay(n int, mats []Matrix, rank int) *layout {
	l := &layout{}
	at := 0
	keep := func(upTo int) {
		if upTo > at {
			l.dense = append(l.dense, [2]int{at, upTo})
			l.first += upTo - at
		}
	}
	for _, m := range mats {
		if !m.compressible(rank) {
			continue
		}
		keep(m.At)
		at = m.At + m.Rows*m.Cols
		l.mats = append(l.mats, factored{m, rank, l.behind, l.second})
		l.behind, l.second = l.behind+rank*m.Rows, l.second+rank*m.Cols
	}
	keep(n)
	l.first += l.behind
	return l
}

// ranks lists the ranks of the warm-up's stages and the one behind them, descending.
func (c Config) ranks() []int {
	if c.Warmup == 0 {
		return []int{c.Rank}
	}
	return []int{8 * c.Rank, 4 * c.Rank, 2 * c.Rank, c.Rank}
}

// RankAt is the rank of update number update (from 0): 8·Rank at first, then 4·Rank and 2·Rank, in stages of equal length,
// until Rank from update Warmup on.
func (c Config) RankAt(update int) int {
	ranks := c.ranks()
	stages := len(ranks) - 1
	if update >= c.Warmup {
		return ranks[stages]
	}
	return ranks[int(int64(update)*int64(stages)/int64(c.Warmup))]
}

// largest is the largest rank that a matrix is sent at; 0 if it is always sent as it is.
func (c Config) largest(m Matrix) int {
	for _, r := range c.ranks() {
		if m.compressible(r) {
			return r
		}
	}
	return 0
}

// NewFactors makes the state for a vector of n elements, of which the matrices are known; they ascend and do not overlap.
func NewFactors(cfg Config, n int, mats []Matrix) *Factors {
	f := &Factors{cfg: cfg, places: map[int]int{}, layouts: map[int]*layout{}, inverse: 1}
	q, p := 0, 0
	for _, m := range mats {
		if r := cfg.largest(m); r > 0 {
			f.places[m.At] = q
			q, p = q+r*m.Cols, max(p, r*m.Rows)
		}
	}
	most := 0
	for _, r := range cfg.ranks() {
		l := lay(n, mats, r)
		f.layouts[r] = l
		most = max(most, l.first, l.second)
	}
	f.layout = f.layouts[cfg.RankAt(0)]
	f.rest, f.q = newPair(n, cfg.Transactional), newPair(q, cfg.Transactional)
	f.payload, f.p = make([]float32, most), make([]float32, p)
	return f
}

// Payload is how many float32 the two sums of a step have.
func (f *Factors) Payload() (first, second int) { return f.first, f.second }

// Payload is what the Factors of a vector send and take.
type Payload struct {
	First, Second  int   // float32 in the two sums of a step, once the warm-up is over
	Most           int   // float32 in the largest sum of any step
	State, Buffers int64 // bytes
}

// Payload is that of a vector of n elements with these matrices.
func (c Config) Payload(n int, mats []Matrix) Payload {
	l := lay(n, mats, c.Rank)
	z := Payload{First: l.first, Second: l.second}
	for _, r := range c.ranks() {
		l := lay(n, mats, r)
		z.Most = max(z.Most, l.first, l.second)
	}
	q, p := 0, 0
	for _, m := range mats {
		r := c.largest(m)
		q, p = q+r*m.Cols, max(p, r*m.Rows)
	}
	z.State, z.Buffers = 4*int64(n+q), 4*int64(z.Most+p)
	return z
}

// Begin starts a step; see Stream.Begin.
func (f *Factors) Begin(update int, by float64) {
	f.layout = f.layouts[f.cfg.RankAt(update)]
	f.Divide(by)
	f.rest.begin()
	f.q.begin()
}

// Divide says what the step's gradient is to be divided by, where that was not known at its beginning.
func (f *Factors) Divide(by float64) { f.inverse = float32(1 / by) }

// Commit makes the step's effects last.
func (f *Factors) Commit() {
	f.rest.commit()
	f.q.commit()
}

// Sum makes dst the compressed sum of all contributors. sum adds a vector over them in place; own is this contributor's
// part, a list of vectors to be added, the first of which may be dst.
func (f *Factors) Sum(own [][]float32, dst []float32, sum func([]float32) error) error {
	rest := f.rest.work
	factor := f.inverse
	for _, g := range own {
		addScaled(rest, g, factor)
	}
	payload := f.payload[:f.first]
	for _, m := range f.mats {
		q := f.prepare(m)
		for i := range m.Rows {
			row := rest[m.At+i*m.Cols:][:m.Cols]
			for j := range m.rank {
				payload[m.p+j*m.Rows+i] = vec.Dot(row, q[j*m.Cols:][:m.Cols])
			}
		}
	}
	at := f.behind
	for _, d := range f.dense {
		at += copy(payload[at:], rest[d[0]:d[1]])
		clear(rest[d[0]:d[1]])
	}
	if err := sum(payload); err != nil {
		return err
	}
	at = f.behind
	for _, d := range f.dense {
		at += copy(dst[d[0]:d[1]], payload[at:])
	}
	// dst holds nothing of the matrices yet: their P goes where dst's matrix will be, and the payload is free for Mᵀ·P.
	for _, m := range f.mats {
		p := payload[m.p:][:m.rank*m.Rows]
		orthonormalise(p, m.rank, m.Rows)
		copy(dst[m.At:], p)
	}
	payload = f.payload[:f.second]
	for _, m := range f.mats {
		q, p := payload[m.q:][:m.rank*m.Cols], dst[m.At:][:m.rank*m.Rows]
		clear(q)
		for i := range m.Rows {
			row := rest[m.At+i*m.Cols:][:m.Cols]
			for j := range m.rank {
				vec.Axpy(q[j*m.Cols:][:m.Cols], row, p[j*m.Rows+i])
			}
		}
		for i := range m.Rows { // what this contributor's product lacks
			row := rest[m.At+i*m.Cols:][:m.Cols]
			for j := range m.rank {
				vec.Axpy(row, q[j*m.Cols:][:m.Cols], -p[j*m.Rows+i])
			}
		}
	}
	if err := sum(payload); err != nil {
		return err
	}
	for _, m := range f.mats {
		copy(f.factor(m), payload[m.q:])
		f.multiply(m, dst[m.At:][:m.Rows*m.Cols])
	}
	return nil
}

// factor is a matrix's Q, its columns one behind the other. One of a smaller rank is the beginning of one of a larger.
func (f *Factors) factor(m factored) []float32 { return f.q.work[f.places[m.At]:][:m.rank*m.Cols] }

// multiply makes m the product of the P that lies at its beginning and of Q.
func (f *Factors) multiply(m factored, out []float32) {
	p := append(f.p[:0], out[:m.rank*m.Rows]...)
	q := f.factor(m)
	for i := range m.Rows {
		row := out[i*m.Cols:][:m.Cols]
		vec.Scale(row, q[:m.Cols], p[i])
		for j := 1; j < m.rank; j++ {
			vec.Axpy(row, q[j*m.Cols:][:m.Cols], p[j*m.Rows+i])
		}
	}
}

// prepare gives the columns of a matrix's Q, stored one behind the other, unit length; one that is 0 is drawn anew.
func (f *Factors) prepare(m factored) []float32 {
	q := f.factor(m)
	for j := range m.rank {
		col := q[j*m.Cols:][:m.Cols]
		norm := math.Sqrt(vec.SumSq64(col))
		if !(norm > 1e-30) || math.IsInf(norm, 0) {
			draw(col, m.Key, j)
			norm = math.Sqrt(vec.SumSq64(col))
		}
		vec.Scale(col, col, float32(1/norm))
	}
	return q
}

// draw fills column j of a first factor with random numbers of mean 0 that depend on the key alone.
func draw(col []float32, key uint64, j int) {
	s := vec.Stream{Key: [2]uint32{uint32(key), uint32(key >> 32)}, Prefix: [2]uint32{0x706f7765, uint32(j)}}
	for i := range col {
		w := s.Block(uint64(i))
		col[i] = float32(int32(w[0])>>8) + float32(int32(w[1])>>8) + float32(int32(w[2])>>8) // near enough to a normal distribution
	}
}

// orthonormalise makes the vectors of n elements in p orthonormal, one after the other (modified Gram-Schmidt). One that lies
// in the span of those before it becomes 0. What is not finite stays so.
func orthonormalise(p []float32, rank, n int) {
	for j := range rank {
		v := p[j*n:][:n]
		before := math.Sqrt(vec.SumSq64(v))
		for range 2 { // twice is enough
			for k := range j {
				w := p[k*n:][:n]
				vec.Axpy(v, w, -vec.Dot(v, w))
			}
		}
		norm := math.Sqrt(vec.SumSq64(v))
		if norm <= float64(1e-6*before) || norm < 1e-30 {
			clear(v)
			continue
		}
		vec.Scale(v, v, float32(1/norm))
	}
}

// Absorb is the step of a contributor that is alone; see Stream.Absorb.
func (f *Factors) Absorb(own []float32) {
	addScaled(f.rest.work, own, f.inverse)
	copy(own, f.rest.work)
	clear(f.rest.work)
}

// Restore takes back elements from lo on of a sum that was delivered but not used.
func (f *Factors) Restore(sum []float32, lo int) { vec.AddTo(f.rest.work[lo:lo+len(sum)], sum) }

// Rest is what was not sent of the vector.
func (f *Factors) Rest() []float32 { return f.rest.kept }

// Q is the factor of a matrix that the next step begins with, the same for all contributors, with room for the largest rank that
// the matrix is sent at; nil where the matrix is always sent as it is.
func (f *Factors) Q(m Matrix) []float32 {
	at, ok := f.places[m.At]
	if !ok {
		return nil
	}
	return f.q.kept[at:][:f.cfg.largest(m)*m.Cols]
}
