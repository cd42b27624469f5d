package plugintest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"starling/core/plugin"
	"starling/sdk"
	"starling/sdk/vec"
)

// Earlier is an earlier version of the plugin that is checked.
type Earlier struct {
	Use    *plugin.Use
	Hypers map[string]any
}

// upgradeTimeout bounds one piece of an upgrade.
const upgradeTimeout = 20 * time.Second

// upgrades lets an earlier version make state, and this one turn it into its own and go on.
func (s *suite) upgrades(old Earlier) (string, error) {
	now, was := s.use.Manifest, old.Use.Manifest
	if was.Optimizer == nil {
		return "", fmt.Errorf("the earlier version is a %s", was.Kind())
	}
	if err := (plugin.Versions{was.Name: was}).Upgradable(plugin.Versions{now.Name: now}); err != nil {
		return "", err
	}
	if was.Version == now.Version {
		return "", fmt.Errorf("both versions call themselves %s", now.Version)
	}
	var shapes [][]int
	for _, x := range s.shapes {
		if was.Optimizer.Takes(len(x)) {
			shapes = append(shapes, x)
		}
	}
	if len(shapes) == 0 {
		return "", fmt.Errorf("versions %s and %s take no tensors in common", was.Version, now.Version)
	}
	before, err := newRank(old.Use, old.Hypers, shapes)
	if err != nil {
		return "", err
	}
	defer before.close()
	if _, err := before.run(s.ctx, 0, steps, options{threads: 1}); err != nil {
		return "", fmt.Errorf("version %s: %w", was.Version, err)
	}
	whole, err := s.upgraded(before, was, nil)
	if err != nil {
		return "", err
	}
	defer whole.close()
	random := rand.New(rand.NewPCG(5, 9))
	var cut func(n int) []int
	if now.Optimizer.Granularity == sdk.Elementwise {
		cut = func(n int) []int { return []int{0, random.IntN(n + 1), n} }
	}
	again, err := s.upgraded(before, was, cut)
	if err != nil {
		return "", err
	}
	defer again.close()
	if err := whole.differs(again); err != nil {
		what := "another process upgrades the same state otherwise"
		if cut != nil {
			what += ", or the result depends on how a parameter is cut"
		}
		return "", means(err, "%s: %w", what)
	}
	if _, err := again.run(s.ctx, steps, 2*steps, options{threads: 1}); err != nil {
		return "", fmt.Errorf("going on from the upgraded state: %w", err)
	}
	return fmt.Sprintf("%s to %s, %d shapes", was.Version, now.Version, len(shapes)), nil
}

// upgraded is a rank of this version that goes on from the state of another.
func (s *suite) upgraded(before *rank, was sdk.Manifest, cut func(n int) []int) (_ *rank, err error) {
	r, err := newRank(s.use, s.hypers, before.shapes)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	copy(r.mem[memParams], before.mem[memParams])
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	u, err := plugin.NewUpgrader(ctx, &plugin.Optimizer{Use: s.use, Hypers: s.hypers}, was, 1, upgradeTimeout, nil)
	if err != nil {
		return nil, err
	}
	defer u.Close()
	for i, n := range r.sizes {
		stored := func(name string, _ []int, offset, k int) ([]float32, error) {
			slot := slices.IndexFunc(was.Optimizer.State, func(x sdk.Slot) bool { return x.Name == name })
			return before.mem[memState][before.states[i][slot]+offset:][:k], nil
		}
		cuts := []int{0, n}
		if cut != nil {
			cuts = cut(n)
		}
		for k := 1; k < len(cuts); k++ {
			lo, hi := cuts[k-1], cuts[k]
			state := make([][]float32, len(r.states[i]))
			for j, at := range r.states[i] {
				if state[j] = r.mem[memState][at:][:r.lengths[i][j]]; !s.use.Manifest.Optimizer.State[j].Own {
					state[j] = state[j][lo:hi]
				}
			}
			x := plugin.Range{Name: r.names[i], Shape: r.shapes[i], From: lo, To: hi}
			if err := u.Convert(ctx, x, steps, r.mem[memParams][r.values[i]:][lo:hi], state, stored); err != nil {
				return nil, err
			}
			for j, v := range state {
				if !vec.AllFinite(v) {
					return nil, fmt.Errorf("the upgraded state %s is not finite", s.use.Manifest.Optimizer.State[j].Name)
				}
			}
		}
	}
	return r, nil
}

// noEarlier says that an upgrade was not checked.
func noEarlier(m sdk.Manifest) Check {
	return Check{Name: "upgrades the state of " + strings.Join(m.Optimizer.UpgradesFrom, ", "), Skipped: true, Note: "not checked: name the earlier version with --from PATH"}
}
