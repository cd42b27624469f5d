package graph

import (
	"fmt"
	"path"
	"reflect"
	"strings"
	"unicode"
)

// String prints one line for each node, in aligned columns: results, operation, inputs and attributes; types; position
// in the recipe (base name of the file only); block; the phase, if it is the backward pass. The outputs follow.
//
//	%7 = linear %6, %1   f32[8,64,384]   nn.star:12:12   block h.0.mlp
func (g *Graph) String() string {
	rows := make([][]string, 0, len(g.Nodes))
	for _, n := range g.Nodes {
		row := []string{n.String(), types(n.Out), n.Pos.short(), "", ""}
		if n.Block != "" {
			row[3] = "block " + n.Block
		}
		if n.Phase == Backward {
			row[4] = "backward"
		}
		rows = append(rows, row)
	}
	var b strings.Builder
	writeColumns(&b, rows)
	for _, o := range g.Outputs {
		fmt.Fprintf(&b, "output %s = %v\n", o.Name, o.Value)
	}
	return b.String()
}

// writeColumns pads every cell to the widest of its column.
func writeColumns(b *strings.Builder, rows [][]string) {
	var width []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			if width[i] > 0 {
				fmt.Fprintf(&line, "%-*s   ", width[i], cell)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

// String prints the node without types and place: "%7 = linear %6, %1".
func (n *Node) String() string {
	s := values(n.Out) + " = " + n.Op.Name
	switch a := n.Attrs.(type) {
	case InputAttrs:
		return s + " " + a.Name
	case ParamAttrs:
		s += " " + a.Name
		if a.Frozen {
			s += " frozen"
		}
		if a.Buffer {
			s += " buffer"
		}
		return s
	}
	if len(n.In) > 0 {
		s += " " + values(n.In)
	}
	if a := attrString(n.Attrs); a != "" {
		s += "  " + a
	}
	return s
}

func values(vs []*Value) string {
	s := make([]string, len(vs))
	for i, v := range vs {
		s[i] = v.String()
	}
	return strings.Join(s, ", ")
}

func types(vs []*Value) string {
	s := make([]string, len(vs))
	for i, v := range vs {
		s[i] = v.Type.String()
	}
	return strings.Join(s, ", ")
}

// short is String with the file's base name.
func (p Position) short() string {
	if p.File != "" {
		p.File = path.Base(strings.ReplaceAll(p.File, `\`, "/"))
	}
	return p.String()
}

// String prints [8,64].
func (d Dims) String() string {
	return strings.ReplaceAll(fmt.Sprint(d.Slice()), " ", ",")
}

// attrString prints the fields of an attribute struct as name=value, the two sides of an image as one field (stride=2x1).
// Fields that are false, and the extents H and W where they are not used, are left out.
func attrString(attrs any) string {
	v := reflect.ValueOf(attrs)
	if v.Kind() != reflect.Struct {
		return ""
	}
	var out []string
	for i := 0; i < v.NumField(); i++ {
		name, f := v.Type().Field(i).Name, v.Field(i)
		switch {
		case f.Kind() == reflect.Bool:
			if f.Bool() {
				out = append(out, snake(name))
			}
		case strings.HasSuffix(name, "H"):
			h, w := f.Int(), v.Field(i+1).Int()
			if name != "H" || h != 0 {
				out = append(out, fmt.Sprintf("%s=%dx%d", sides(name), h, w))
			}
			i++ // W
		case name == "Key":
			out = append(out, fmt.Sprintf("key=%016x", f.Uint()))
		default:
			out = append(out, fmt.Sprintf("%s=%v", snake(name), f.Interface()))
		}
	}
	return strings.Join(out, " ")
}

// sides is the name of a pair of fields, given that of the first: StrideH and StrideW are stride.
func sides(name string) string {
	switch name {
	case "H":
		return "size"
	case "KH":
		return "kernel"
	}
	return snake(strings.TrimSuffix(name, "H"))
}

// snake turns a field's name into the spelling of recipes: TransA becomes trans_a.
func snake(name string) string {
	var b strings.Builder
	lower := false
	for _, r := range name {
		if unicode.IsUpper(r) && lower {
			b.WriteByte('_')
		}
		lower = unicode.IsLower(r)
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
