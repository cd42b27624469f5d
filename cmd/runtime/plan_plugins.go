package main

import (
	"fmt"
	"strings"

	"starling/core/plan"
	"starling/core/train"
)

// pluginsText says what optimizer plugins do on each rank: which tensors, and what scratch memory that takes. It is empty where there
// are none.
func pluginsText(spec *train.Spec, plans []*plan.Plan) string {
	var order []string
	rows := map[string][][2]string{}
	about := map[string]train.PluginShare{}
	most, sum := map[string]int64{}, map[string]int64{}
	dealt := spec.Mesh.Zero > 0 && len(plans) > 1
	for rank, p := range plans {
		for _, x := range train.PluginShares(spec, p, spec.Mesh.Threads) {
			if rows[x.Name] == nil {
				order = append(order, x.Name)
			}
			about[x.Name] = x
			most[x.Name], sum[x.Name] = max(most[x.Name], x.Elements), sum[x.Name]+x.Elements
			what := fmt.Sprintf("%d tensor%s, %s elements, scratch %s", len(x.Tensors), plural(len(x.Tensors)), count(x.Elements), bytesText(x.ScratchBytes))
			if x.Whole {
				what += fmt.Sprintf(" (one tensor with its state: %s)", x.Largest)
			}
			who := fmt.Sprintf("rank %d", rank)
			if !dealt {
				who = "each rank"
			}
			if !dealt && rank > 0 {
				continue
			}
			rows[x.Name] = append(rows[x.Name], [2]string{who, what})
			if x.Whole && dealt {
				for _, line := range wrapped(x.Tensors, 100) {
					rows[x.Name] = append(rows[x.Name], [2]string{"", line})
				}
			}
		}
	}
	var b strings.Builder
	for _, name := range order {
		x := about[name]
		kind := "element-wise, cut like the built-in optimizers' state"
		if x.Whole {
			kind = "whole tensors"
			if dealt {
				kind += fmt.Sprintf(", each dealt to one owner: the busiest rank renews %.2f times its even share", float64(most[name])*float64(len(plans))/float64(sum[name]))
			} else if len(plans) > 1 {
				kind += ", which every rank renews (zero = 1 or more deals them to owners)"
			}
		}
		fmt.Fprintf(&b, "\noptimizer plugin %s %s, %s:\n%s", name, x.Version, kind, table(rows[name]))
	}
	return b.String()
}

// wrapped joins names into lines of at most width bytes, where a name does not need more.
func wrapped(names []string, width int) (lines []string) {
	line := ""
	for i, n := range names {
		if i < len(names)-1 {
			n += ","
		}
		if line != "" && len(line)+1+len(n) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += n
	}
	return append(lines, line)
}
