package sdk

import (
	"context"

	pb "starling/sdk/proto/v1"
)

// Schedule says how the learning rate goes.
//
// The runtime asks before the run begins, on every rank, and the ranks compare the answers: the same settings must give the same bits
// in every process. Go's math.Exp, Pow, Cos and the like differ from one processor to the next; products that feed a sum
// need a conversion, float64(a*b) + c.
type Schedule interface {
	Plugin
	// Begin is called before the first Rate, and again before others with other settings, with the recipe's settings and the number of steps that the schedule
	// is made for. It reports settings that do not go together.
	Begin(settings Hypers, total int) error
	// Rate is the learning rate of a step, from 0: finite and not below 0.
	Rate(step int) float64
}

// scheduleServer serves a schedule. It is asked by one caller at a time.
type scheduleServer struct {
	pb.UnimplementedScheduleServer
	schedule Schedule
}

// Rates implements the service.
func (s *scheduleServer) Rates(_ context.Context, r *pb.RatesRequest) (*pb.RatesResponse, error) {
	out := &pb.RatesResponse{}
	return out, guarded("the schedule", func() error {
		if err := s.schedule.Begin(hypersOf(r.Settings), int(r.Total)); err != nil {
			return err
		}
		for step := r.First; step < r.Last; step++ {
			out.Rates = append(out.Rates, s.schedule.Rate(int(step)))
		}
		return nil
	})
}
