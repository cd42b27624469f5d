package train

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Result is what a run ends with: result.json in the run folder. docs/formats.md documents each key.
type Result struct {
	Recipe          string   `json:"recipe"`
	Steps           int      `json:"steps"`
	Epoch           int      `json:"epoch"`
	Tokens          int64    `json:"tokens"`
	Seconds         float64  `json:"seconds"`
	TokensPerS      float64  `json:"tokens_per_s"`
	FirstStepS      float64  `json:"first_step_s"`
	DataIndexS      float64  `json:"data_index_s"`
	Ranks           int      `json:"ranks"`
	Threads         int      `json:"threads"`
	Kernels         string   `json:"kernels"`
	DataFingerprint string   `json:"data_fingerprint"`
	TrainLoss       Figure   `json:"train_loss"`
	EvalLoss        *Figure  `json:"eval_loss"`
	BestEvalLoss    *float64 `json:"best_eval_loss"`
	Eval            Metrics  `json:"eval,omitempty"`
	Parameters      int64    `json:"parameters"`
	PlannedPeak     int64    `json:"planned_peak_bytes"`
	PlannedHost     int64    `json:"planned_host_bytes,omitempty"` // the part of PlannedPeak off the device
	Peak            int64    `json:"peak_bytes"`
	PeakRSS         int64    `json:"peak_rss_bytes"`
	SentBytes       int64    `json:"sent_bytes_per_step"`
	Overlap         float64  `json:"communication_hidden"`
	WeightsSHA256   string   `json:"weights_sha256"`
	Digest          string   `json:"recipe_digest"`
	// Skipped counts the steps, of Steps, that were not taken because a gradient overflowed; LossScale is the last scale.
	Skipped   int     `json:"skipped_steps"`
	LossScale float64 `json:"loss_scale,omitempty"`
	Stopped   string  `json:"stopped,omitempty"` // why the run ended early: "signal" or "hook"
	// Links says how much the ranks of each host have sent to those of each other, and to each other.
	Links []Link `json:"links,omitempty"`
	// Peers says the same of every two ranks, where there are not too many.
	Peers []PeerLink `json:"peers,omitempty"`
}

// Link counts the bytes from the ranks of one host to those of another, or of the same. Payload is what was handed over, and parted into
// what memory took and what connections within the host and between hosts did; Wire went through connections, frames included.
type Link struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Payload int64  `json:"payload_bytes"`
	Memory  int64  `json:"memory_bytes"`
	Host    int64  `json:"host_bytes"`
	Network int64  `json:"network_bytes"`
	Wire    int64  `json:"wire_bytes"`
}

// PeerLink is the Link from one rank to another.
type PeerLink struct {
	Rank int `json:"rank"`
	Peer int `json:"peer"`
	Link
}

// ResultFile is the name of the result in a run folder.
const ResultFile = "result.json"

// Write stores the result in a run folder, atomically.
func (r *Result) Write(dir string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("result: %w", err)
	}
	path := filepath.Join(dir, ResultFile)
	if err := os.WriteFile(path+".tmp", append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	return nil
}

// finish makes the result. The last collective gathers the largest memory figures.
func (l *loop) finish(ctx context.Context) (*Result, error) {
	l.env.Status("finishing")
	hash, err := l.engine.hash(ctx)
	if err != nil {
		return nil, err
	}
	st := &l.state
	r := &Result{Recipe: l.spec.Name, Steps: st.Step, Tokens: st.Tokens, Seconds: st.Seconds, TokensPerS: ratio(float64(st.Tokens), st.Seconds),
		FirstStepS: l.firstStep, DataIndexS: l.indexSecs, Ranks: l.env.World, Threads: l.env.Threads, Kernels: l.env.Device.KernelSet(),
		DataFingerprint: l.corpus.Fingerprint(), TrainLoss: st.TrainLoss, Eval: st.Eval, Digest: l.env.Digest,
		Parameters: l.engine.plan.Summary().Parameters, SentBytes: l.sentPerStep, Overlap: l.hidden.fraction(),
		WeightsSHA256: hash, Skipped: st.Skipped}
	if l.spec.LossScale.Active() {
		r.LossScale = st.Scale.Scale
	}
	if st.Step > 0 {
		e, _ := l.sampler.Position(int64(st.Step - 1))
		r.Epoch = int(e)
	}
	if v, ok := st.Eval["eval_loss"]; ok {
		loss := Figure(v)
		r.EvalLoss = &loss
	}
	if st.BestStep > 0 {
		b := st.Best
		r.BestEvalLoss = &b
	}
	if st.Stopped {
		r.Stopped = "hook"
	}
	planned, host, used := l.memory()
	var foreign int64
	if l.env.Group != nil {
		foreign = l.env.Group.Foreign()
	}
	figures := []float64{float64(planned), float64(used), float64(peakRSS(foreign)), float64(host)}
	if l.env.World > 1 {
		all, err := l.env.Group.AllGatherFloat64(ctx, l.spec.label("memory figures", "train"), figures)
		if err != nil {
			return nil, err
		}
		for _, f := range all {
			for i := range figures {
				figures[i] = max(figures[i], f[i])
			}
		}
	}
	r.PlannedPeak, r.Peak, r.PeakRSS, r.PlannedHost = int64(figures[0]), int64(figures[1]), int64(figures[2]), int64(figures[3])
	return r, nil
}
