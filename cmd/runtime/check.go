package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"starling/core/cluster"
	"starling/core/plan"
	"starling/core/recipe"
	"starling/core/train"
)

func newCheck() *cobra.Command {
	var set, hosts []string
	c := &cobra.Command{
		Use:   "check RECIPE.star",
		Short: "Find every mistake in a recipe that can be found without training",
		Args:  oneRecipe,
		RunE: func(c *cobra.Command, args []string) error {
			spec, plans, err := inspect(c.Context(), args[0], set, hosts)
			if err != nil {
				return err
			}
			if err := fits(spec, plans); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s is fine: %s parameters, %d rank%s\n", args[0], count(plans[0].Summary().Parameters), spec.Mesh.Data, plural(spec.Mesh.Data))
			return err
		},
	}
	c.Flags().StringArrayVar(&set, "set", nil, "set a recipe parameter, as `name=value`; may be repeated")
	hostsFlag(c.Flags(), &hosts)
	return c
}

func newPlan() *cobra.Command {
	var set, hosts []string
	var dump string
	c := &cobra.Command{
		Use:   "plan RECIPE.star",
		Short: "Print what a run will need and do, without running it",
		Long: `Print what a run will need: parameters, memory per rank, arithmetic and traffic per step. --dump prints the plan itself:

  graph     the model as traced, one operation a line
  passes    the graph after each pass of the lowering
  program   the instructions of a rank, with the place of every operand`,
		Args: oneRecipe,
		RunE: func(c *cobra.Command, args []string) error {
			spec, plans, err := inspect(c.Context(), args[0], set, hosts)
			if err != nil {
				return err
			}
			if dump != "" {
				text, err := plans[0].Dump(dump)
				if err != nil {
					return &exitError{2, err}
				}
				_, err = io.WriteString(c.OutOrStdout(), text)
				return err
			}
			if _, err := io.WriteString(c.OutOrStdout(), planText(spec, plans)); err != nil {
				return err
			}
			return fits(spec, plans)
		},
	}
	c.Flags().StringArrayVar(&set, "set", nil, "set a recipe parameter, as `name=value`; may be repeated")
	hostsFlag(c.Flags(), &hosts)
	c.Flags().StringVar(&dump, "dump", "", "print the plan's `stage`: graph, passes or program (of rank 0)")
	return c
}

// inspect loads a recipe, looks for its data, and plans every rank.
func inspect(ctx context.Context, path string, set, hosts []string) (*train.Spec, []*plan.Plan, error) {
	spec, err := recipe.Load(path, recipe.Options{Set: set, Print: func(text string) { fmt.Fprintln(os.Stderr, text) }})
	if err != nil {
		return nil, nil, err
	}
	if len(hosts) > 0 {
		spec.Mesh.Hosts = hosts
		if err := (cluster.Config{Ranks: spec.Mesh.Data, Hosts: hosts}).Validate(); err != nil {
			return nil, nil, execOptions{hosts: hosts}.blame(err)
		}
	}
	if err := spec.Mesh.CheckHosts(); err != nil {
		return nil, nil, err
	}
	if err := spec.Scan(ctx); err != nil {
		return nil, nil, err
	}
	var plans []*plan.Plan
	for r := range spec.Mesh.Data {
		p, err := train.Plan(spec, spec.Mesh.Data, r)
		if err != nil {
			return nil, nil, err
		}
		plans = append(plans, p)
	}
	return spec, plans, nil
}

// fits refuses a recipe some rank of which needs more memory than it may take, before the device's scratch.
func fits(spec *train.Spec, plans []*plan.Plan) error {
	for _, p := range plans {
		if err := spec.Fits(p, 0); err != nil {
			return err
		}
	}
	return nil
}

// stageRows plans a rank at every stage of sharding.
func stageRows(spec *train.Spec, rank int) [][2]string {
	names := []string{"zero = 0, nothing", "zero = 1, optimizer state", "zero = 2, gradients too", "zero = 3, parameters too"}
	var rows [][2]string
	for stage, name := range names {
		s := *spec
		s.Mesh.Zero = stage
		if stage < 3 {
			s.Mesh.Shard = 0
		}
		p, err := train.Plan(&s, s.Mesh.Data, rank)
		if err != nil {
			continue // a budget that only another stage meets
		}
		m := train.PlanMemory(&s, p, 0)
		rows = append(rows, [2]string{name, fmt.Sprintf("%s: parameters %s, optimizer state %s, gradients %s, %s sent a step", m.Text(),
			bytesText(m.Params+m.Off.Params), bytesText(m.State+m.Off.State), bytesText(m.Grads+m.Sums), bytesText(p.Summary().SentBytes))})
	}
	return rows
}

// planText is the figures of a run: the plan's own for the rank that sends most, and each rank's memory.
func planText(spec *train.Spec, plans []*plan.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: global batch %d = %d micro-batches of %d, in %d lanes, on %d rank%s\n\n", spec.Name, spec.Data.GlobalBatch,
		spec.Data.MicroBatches(), spec.Data.MicroBatch, spec.Data.LaneCount(), len(plans), plural(len(plans)))
	busiest := 0 // the rank that most has to be said of
	for r, p := range plans {
		if s, t := p.Summary(), plans[busiest].Summary(); s.SentBytes > t.SentBytes || s.SentBytes == t.SentBytes && s.MicroBatches > t.MicroBatches {
			busiest = r
		}
	}
	if len(plans) > 1 {
		fmt.Fprintf(&b, "rank %d, which sends most:\n", busiest)
	}
	fmt.Fprint(&b, plans[busiest].Summary())
	fmt.Fprintf(&b, "\nmemory by rank, before the device's scratch:\n")
	var rows [][2]string
	most := 0
	for r, p := range plans {
		m := train.PlanMemory(spec, p, 0)
		rows = append(rows, [2]string{fmt.Sprintf("rank %d", r), m.Text()})
		if m.Total() > train.PlanMemory(spec, plans[most], 0).Total() {
			most = r
		}
	}
	b.WriteString(table(rows))
	fmt.Fprintf(&b, "\nmemory of rank %d, which needs most:\n", most)
	rows = nil
	for _, l := range train.PlanMemory(spec, plans[most], 0).Lines(plans[most]) {
		rows = append(rows, [2]string{l.Name, l.Text})
	}
	b.WriteString(table(rows))
	if len(plans) > 1 {
		fmt.Fprintf(&b, "\nmemory of that rank by what is sharded:\n%s", table(stageRows(spec, most)))
	}
	fmt.Fprintf(&b, "\noptimizer groups:\n")
	rows = nil
	for i := range spec.Optimizer.Groups() {
		n := 0
		for _, p := range plans[0].Params {
			if p.Optimised() && p.Group == i {
				n++
			}
		}
		if n > 0 {
			rows = append(rows, [2]string{spec.Optimizer.GroupName(i), fmt.Sprintf("%d tensor%s, weight decay %v", n, plural(n), spec.Optimizer.Decay(i))})
		}
	}
	b.WriteString(table(rows))
	b.WriteString(pluginsText(spec, plans))
	return b.String()
}
