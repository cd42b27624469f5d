package plugin

import (
	"context"
	"fmt"
	"sync"
	"time"

	"starling/sdk"
	pb "starling/sdk/proto/v1"
)

// SinkSpec is a sink that a recipe asks for.
type SinkSpec struct {
	Use      *Use
	Settings map[string]any
}

// Sink hands a run's figures to a plugin. Figures that the plugin cannot take in time are dropped, and one that fails is started again once; then
// it is given up, with a warning: a sink never holds up or ends a run.
type Sink struct {
	spec SinkSpec
	open *pb.OpenRequest
	log  Log

	queue   chan *pb.Record
	ended   chan struct{}
	mu      sync.Mutex
	dropped int
}

const (
	sinkQueue   = 1024
	sinkBatch   = 256
	sinkTimeout = 10 * time.Second
)

// OpenSink starts the plugin and tells it of the run. An error means that there will be no sink.
func OpenSink(ctx context.Context, s SinkSpec, folder, recipe string, step int, log Log) (*Sink, error) {
	if log == nil {
		log = func(string, string) {}
	}
	k := &Sink{spec: s, log: log, queue: make(chan *pb.Record, sinkQueue), ended: make(chan struct{}),
		open: &pb.OpenRequest{Settings: map[string]*pb.Value{}, Folder: folder, Recipe: recipe, Step: int64(step)}}
	for name, v := range s.Settings {
		k.open.Settings[name] = sdk.ToValue(v)
	}
	p, err := k.start(ctx)
	if err != nil {
		return nil, err
	}
	go k.run(p)
	return k, nil
}

func (k *Sink) start(ctx context.Context) (*Process, error) {
	if err := k.spec.Use.verify(); err != nil {
		return nil, err
	}
	p, err := Start(ctx, k.spec.Use.Found, StartOptions{Threads: 1, Log: k.log})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, sinkTimeout)
	defer cancel()
	if _, err := pb.NewSinkClient(p.conn).Open(ctx, k.open); err != nil {
		text := p.out.quoted()
		p.Kill()
		return nil, fmt.Errorf("plugin %s: opening the sink: %w%s", p.Name, plain(err), text)
	}
	return p, nil
}

// Write hands figures over without waiting for the plugin.
func (k *Sink) Write(kind string, step int, values map[string]float64) {
	r := &pb.Record{Kind: kind, Step: int64(step), Time: float64(time.Now().UnixNano()) / 1e9, Values: values}
	select {
	case k.queue <- r:
	default:
		k.mu.Lock()
		k.dropped++
		k.mu.Unlock()
	}
}

// Close hands over what is left and ends the plugin.
func (k *Sink) Close() {
	close(k.queue)
	<-k.ended
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dropped > 0 {
		k.log("warn", fmt.Sprintf("%d figures were dropped because the sink was too slow", k.dropped))
	}
}

// run writes batches until the queue is closed.
func (k *Sink) run(p *Process) {
	defer close(k.ended)
	tries := 0
	call := func(f func(context.Context, pb.SinkClient) error) {
		for p != nil {
			ctx, cancel := context.WithTimeout(context.Background(), sinkTimeout)
			err := f(ctx, pb.NewSinkClient(p.conn))
			cancel()
			if err == nil {
				return
			}
			p.Kill()
			text := p.out.quoted()
			p = nil
			if tries++; tries > 1 {
				k.log("error", fmt.Sprintf("the sink failed again and is given up: %v%s", plain(err), text))
				return
			}
			k.log("warn", fmt.Sprintf("the sink failed and is started again: %v", plain(err)))
			next, err := k.start(context.Background())
			if err != nil {
				k.log("error", fmt.Sprintf("the sink is given up: %v", err))
				return
			}
			p = next
		}
	}
	for first := range k.queue {
		batch := []*pb.Record{first}
	more:
		for len(batch) < sinkBatch {
			select {
			case r, ok := <-k.queue:
				if !ok {
					break more
				}
				batch = append(batch, r)
			default:
				break more
			}
		}
		call(func(ctx context.Context, c pb.SinkClient) error {
			_, err := c.Write(ctx, &pb.WriteRequest{Records: batch})
			return err
		})
		k.open.Step = batch[len(batch)-1].Step
	}
	call(func(ctx context.Context, c pb.SinkClient) error {
		_, err := c.Close(ctx, &pb.CloseRequest{})
		return err
	})
	if p != nil {
		p.Kill()
	}
}
