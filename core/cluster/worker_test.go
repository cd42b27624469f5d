//go:build unix

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"starling/core/comm"

	"go.uber.org/goleak"
)

// The test binary starts itself: as a worker with a part to play, or as a launcher that will be killed.
const (
	envPart   = "CLUSTER_TEST_PART"
	envRanks  = "CLUSTER_TEST_RANKS"
	envVictim = "CLUSTER_TEST_VICTIM"
)

func TestMain(m *testing.M) {
	switch part := os.Getenv(envPart); {
	case part == "launcher":
		launcherPart()
	case part != "":
		workerPart(part)
	default:
		goleak.VerifyTestMain(m)
	}
}

func victim() bool { return os.Getenv(envRank) == os.Getenv(envVictim) }

// workerPart is the life of a worker process in the tests.
func workerPart(part string) {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	switch {
	case part == "die-early" && victim():
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case part == "absent" && victim():
		time.Sleep(time.Minute)
	case part == "exit" && victim():
		fmt.Fprintln(os.Stderr, "cannot read the data")
		os.Exit(3)
	case part == "leave" && victim():
		os.Exit(0)
	}
	join := JoinConfig{Digest: "d", Class: "c"}
	if part == "digest" && victim() {
		join.Digest = "other"
	}
	seat, number := (*Seat)(nil), -1
	start, err := Environment(os.Getenv)
	check(err)
	if start != nil && !IsWorker() {
		secret, err := TakeSecret()
		check(err)
		number = start.Number
		seat, err = Attend(ctx, Attendance{Number: start.Number, World: start.World, Address: start.Address, Secret: secret, Host: os.Getenv("STARLING_HOST"), Patience: 15 * time.Second})
		check(err)
	} else {
		seat, err = Enter(ctx)
		check(err)
	}
	if part == "fetch" {
		fetchPart(ctx, seat, check)
	}
	w, err := seat.Join(join)
	check(err)
	ranks := make([]int, w.World())
	for i := range ranks {
		ranks[i] = i
	}
	g, err := comm.NewGroup(w.Transport(), "data", ranks, comm.Options{Timeout: 20 * time.Second})
	check(err)
	steps, stopped := 10, false
	if part == "loop" || part == "deaf" || part == "kill" {
		steps = 1 << 30
	}
	die := rand.IntN(8)
	for step := range steps {
		w.Status(fmt.Sprintf("step %d", step))
		switch {
		case part == "die-mid" && victim() && step == die:
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case part == "fail" && victim() && step == 3:
			check(w.Fail(errors.New("loss is not finite")))
		case part == "deaf" && step == 3:
			_ = w.Event([]byte("deaf"))
			select {} // hears nothing
		}
		// Every rank contributes whether it has been asked to stop; all stop at the same step.
		want := int64(0)
		select {
		case <-w.StopRequested():
			want = 1
		default:
		}
		all, err := g.AllGatherInt64(w.Context(), fmt.Sprintf("step %d", step), []int64{want})
		if err != nil {
			check(w.Fail(err))
		}
		for _, v := range all {
			stopped = stopped || v[0] == 1
		}
		if step == 2 {
			_ = w.Event([]byte(strconv.Itoa(os.Getpid())))
		}
		if stopped {
			break
		}
		if steps > 10 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	check(g.Close())
	result := fmt.Appendf(nil, "rank %d of %d stopped=%v", w.Rank(), w.World(), stopped)
	if len(seat.Payload()) > 0 {
		result = fmt.Appendf(result, " number=%d payload=%s", number, seat.Payload())
	}
	check(w.Done(result))
	os.Exit(0)
}

// launcherPart launches workers and prints their pids, until it is killed.
func launcherPart() {
	cfg := testConfig("loop", 3, -1)
	if at := os.Getenv("CLUSTER_TEST_RENDEZVOUS"); at != "" {
		cfg.Ranks = 2
		cfg.Rendezvous = &Rendezvous{Address: "tcp:" + at, Secret: []byte(testSecret)}
	}
	cfg.OnEvent = func(_ int, pid []byte) { fmt.Println("pid", string(pid)) }
	_, err := Launch(context.Background(), cfg)
	fmt.Println("ended", err)
	os.Exit(0)
}
