package sdk

import (
	"fmt"

	pb "starling/sdk/proto/v1"
)

// Proto is the manifest as it travels.
func (m Manifest) Proto() *pb.Manifest {
	out := &pb.Manifest{Name: m.Name, Version: m.Version, Doc: m.Doc}
	for _, h := range m.Hypers {
		p := &pb.Hyper{Name: h.Name, Type: pb.Hyper_Type(h.Type), Min: h.Min, Max: h.Max, BelowMax: h.BelowMax, Choices: h.Choices, Help: h.Help}
		if !h.Needed {
			p.Default = ToValue(h.Default)
		} else if l, ok := h.Default.([]float64); ok { // its length counts
			p.Default = ToValue(l)
		}
		out.Hypers = append(out.Hypers, p)
	}
	if o := m.Optimizer; o != nil {
		out.Optimizer = &pb.OptimizerInfo{Granularity: pb.OptimizerInfo_Granularity(o.Granularity), MinDims: int32(o.MinDims), MaxDims: int32(o.MaxDims), Journal: o.Journal,
			UpgradesFrom: o.UpgradesFrom}
		for _, s := range o.State {
			out.Optimizer.Slots = append(out.Optimizer.Slots, &pb.Slot{Name: s.Name, Dtype: pb.Slot_F32, Init: s.Init, SameShape: !s.Own, Shape: s.Shape})
		}
	}
	if m.Sink {
		out.Sink = &pb.SinkInfo{}
	}
	if m.Schedule {
		out.Schedule = &pb.ScheduleInfo{}
	}
	if m.Compressor {
		out.Compressor = &pb.CompressorInfo{}
	}
	return out
}

// ManifestOf reads a manifest that came over the wire. Validate says whether it can be used.
func ManifestOf(p *pb.Manifest) (Manifest, error) {
	m := Manifest{Name: p.GetName(), Version: p.GetVersion(), Doc: p.GetDoc(), Sink: p.GetSink() != nil, Schedule: p.GetSchedule() != nil, Compressor: p.GetCompressor() != nil}
	for _, h := range p.GetHypers() {
		x := Hyper{Name: h.Name, Type: Type(h.Type), Min: h.Min, Max: h.Max, BelowMax: h.BelowMax, Choices: h.Choices, Help: h.Help}
		if x.Type < TypeFloat || x.Type > TypeFloats {
			return m, fmt.Errorf("hyper-parameter %q has type %d, which this runtime does not know", h.Name, h.Type)
		}
		if x.Needed = h.Default == nil; !x.Needed {
			x.Default = OfValue(h.Default)
		}
		m.Hypers = append(m.Hypers, x)
	}
	if o := p.Optimizer; o != nil {
		m.Optimizer = &OptimizerInfo{Granularity: Granularity(o.Granularity), MinDims: int(o.MinDims), MaxDims: int(o.MaxDims), Journal: o.Journal,
			UpgradesFrom: o.UpgradesFrom}
		for _, s := range o.Slots {
			if s.Dtype != pb.Slot_F32 {
				return m, fmt.Errorf("state %q has element type %v, which this runtime does not know; it keeps F32", s.Name, s.Dtype)
			}
			m.Optimizer.State = append(m.Optimizer.State, Slot{Name: s.Name, Init: s.Init, Shape: s.Shape, Own: !s.SameShape})
		}
	}
	return m, nil
}

// ToValue is a hyper-parameter's value as it travels; it panics for a type that none has.
func ToValue(v any) *pb.Value {
	switch v := v.(type) {
	case float64:
		return &pb.Value{Kind: &pb.Value_Float{Float: v}}
	case int64:
		return &pb.Value{Kind: &pb.Value_Int{Int: v}}
	case bool:
		return &pb.Value{Kind: &pb.Value_Bool{Bool: v}}
	case string:
		return &pb.Value{Kind: &pb.Value_String_{String_: v}}
	case []float64:
		return &pb.Value{Kind: &pb.Value_Floats{Floats: &pb.Floats{Values: v}}}
	}
	panic(fmt.Sprintf("sdk: no hyper-parameter has a value of type %T", v))
}

// OfValue reads a value that came over the wire; nil if it holds none.
func OfValue(v *pb.Value) any {
	switch k := v.GetKind().(type) {
	case *pb.Value_Float:
		return k.Float
	case *pb.Value_Int:
		return k.Int
	case *pb.Value_Bool:
		return k.Bool
	case *pb.Value_String_:
		return k.String_
	case *pb.Value_Floats:
		return k.Floats.GetValues()
	}
	return nil
}
