package compress

import (
	"math"
	"slices"

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
	cfg   Config
	mats  []factored
	dense [][2]int // ranges of elements that are sent as they are

	update  int
	inverse float32

	rest    pair
	q       pair
	payload []float32
	p       []float32 // of one matrix
}

type factored struct {
	Matrix
	rank int
	q, p int // where its factors begin, in Q and in the payload of P
}

// compressible reports whether the factors are smaller than the matrix.
func (m Matrix) compressible(rank int) bool {
	return rank <= min(m.Rows, m.Cols) && rank*(m.Rows+m.Cols) < m.Rows*m.Cols
}

// NewFactors makes the state for a vector of n elements, of which the matrices are known; they ascend and do not overlap.
func NewFactors(cfg Config, n int, mats []Matrix) *Factors {
	f := &Factors{cfg: cfg, inverse: 1, rest: newPair(n, cfg.Transactional)}
	at, q, p := 0, 0, 0
	keep := func(upTo int) {
		if upTo > at {
			f.dense = append(f.dense, [2]int{at, upTo})
		}
	}
	for _, m := range mats {
		if !m.compressible(cfg.Rank) {
			continue
		}
		keep(m.At)
		at = m.At + m.Rows*m.Cols
		f.mats = append(f.mats, factored{m, cfg.Rank, q, p})
		q, p = q+cfg.Rank*m.Cols, p+cfg.Rank*m.Rows
	}
	keep(n)
	for _, d := range f.dense {
		p += d[1] - d[0]
	}
	f.q = newPair(q, cfg.Transactional)
	f.payload = make([]float32, max(p, q))
	for _, m := range f.mats {
		f.p = slices.Grow(f.p[:0], m.rank*m.Rows)
	}
	return f
}

// Payload is how many float32 the two sums of a step have.
func (f *Factors) Payload() (first, second int) {
	for _, m := range f.mats {
		first += m.rank * m.Rows
		second += m.rank * m.Cols
	}
	for _, d := range f.dense {
		first += d[1] - d[0]
	}
	return first, second
}

// Payload is that of the Factors of a vector, and the size of their state in bytes.
func (c Config) Payload(n int, mats []Matrix) (first, second int, state int64) {
	first = n
	for _, m := range mats {
		if m.compressible(c.Rank) {
			first += c.Rank*m.Rows - m.Rows*m.Cols
			second += c.Rank * m.Cols
		}
	}
	return first, second, 4 * int64(n+second)
}

// Begin starts a step; see Stream.Begin.
func (f *Factors) Begin(update int, by float64) {
	f.update = update
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
	if f.update < f.cfg.Warmup {
		copy(dst, rest)
		clear(rest)
		return sum(dst)
	}
	first, second := f.Payload()
	payload := f.payload[:first]
	at := 0
	for _, m := range f.mats {
		q := f.prepare(m)
		for i := range m.Rows {
			row := rest[m.At+i*m.Cols:][:m.Cols]
			for j := range m.rank {
				payload[m.p+j*m.Rows+i] = vec.Dot(row, q[j*m.Cols:][:m.Cols])
			}
		}
		at = m.p + m.rank*m.Rows
	}
	for _, d := range f.dense {
		at += copy(payload[at:], rest[d[0]:d[1]])
		clear(rest[d[0]:d[1]])
	}
	if err := sum(payload); err != nil {
		return err
	}
	f.take(payload, dst)
	// dst holds nothing of the matrices yet: their P goes where dst's matrix will be, and the payload is free for Mᵀ·P.
	for _, m := range f.mats {
		p := payload[m.p:][:m.rank*m.Rows]
		orthonormalise(p, m.rank, m.Rows)
		copy(dst[m.At:], p)
	}
	payload = f.payload[:second]
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
	copy(f.q.work, payload)
	for _, m := range f.mats {
		f.multiply(m, dst[m.At:][:m.Rows*m.Cols])
	}
	return nil
}

// take writes what was sent as it is to dst.
func (f *Factors) take(payload, dst []float32) {
	at := 0
	for _, m := range f.mats {
		at = m.p + m.rank*m.Rows
	}
	for _, d := range f.dense {
		at += copy(dst[d[0]:d[1]], payload[at:])
	}
}

// multiply makes m the product of the P that lies at its beginning and of Q.
func (f *Factors) multiply(m factored, out []float32) {
	p := append(f.p[:0], out[:m.rank*m.Rows]...)
	q := f.q.work[m.q:][:m.rank*m.Cols]
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
	q := f.q.work[m.q:][:m.rank*m.Cols]
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
				dot := 0.0
				for i := range v {
					dot += float64(float64(v[i]) * float64(w[i]))
				}
				vec.Axpy(v, w, float32(-dot))
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

// Q is the factor of a matrix that the next step begins with, the same for all contributors; nil where the matrix is sent as it is.
func (f *Factors) Q(m Matrix) []float32 {
	for _, x := range f.mats {
		if x.Matrix == m {
			return f.q.kept[x.q:][:x.rank*x.Cols]
		}
	}
	return nil
}
