package sdk

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "starling/sdk/proto/v1"
)

// Upgrader is an Optimizer that goes on with the state of earlier versions of itself, those of OptimizerInfo.UpgradesFrom.
type Upgrader interface {
	Optimizer
	// Upgrade turns the state that an earlier version left into u.State, in place. It is called without Setup, once for every
	// parameter, or with element-wise granularity for ranges of any size, each element of which must depend on that element alone. An error, a panic or a
	// result that is not finite ends the resume; the checkpoint stays as it is.
	Upgrade(u *Upgrade) error
}

// Upgrade is the state of a parameter, or of a range of one, between two versions.
type Upgrade struct {
	Version string // that left the state
	Hypers  Hypers // this version's, as in Setup
	Name    string
	Shape   []int // of the whole parameter
	// From and To are the range of the parameter's elements: all of them with whole granularity.
	From, To int
	// Step counts the updates taken so far.
	Step  int
	Param []float32 // its values, to be read
	// Old is the state by the earlier version's names: the same range of what has the parameter's shape, everything of what has not.
	Old map[string][]float32
	// State has a slice for each slot of the manifest. It begins as what an old slot of the same name and size holds, or else as the
	// initial value.
	State [][]float32
}

// Upgrade implements the service.
func (s *optimizerServer) Upgrade(_ context.Context, r *pb.UpgradeRequest) (*pb.UpgradeResponse, error) {
	p, ok := s.optimizer.(Upgrader)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "it upgrades no state")
	}
	u := &Upgrade{Version: r.Version, Hypers: hypersOf(r.Hypers), Name: r.Name, From: int(r.From), To: int(r.To), Step: int(r.Step), Param: r.Param, Old: map[string][]float32{}}
	for _, d := range r.Shape {
		u.Shape = append(u.Shape, int(d))
	}
	for name, v := range r.Old {
		u.Old[name] = v.GetValues()
	}
	for _, v := range r.State {
		u.State = append(u.State, v.GetValues())
	}
	if err := guarded(fmt.Sprintf("Upgrade of %s[%d:%d]", u.Name, u.From, u.To), func() error { return p.Upgrade(u) }); err != nil {
		return nil, err
	}
	out := &pb.UpgradeResponse{}
	for _, v := range u.State {
		out.State = append(out.State, &pb.StateValues{Values: v})
	}
	return out, nil
}
