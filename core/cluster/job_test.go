package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"starling/core/comm"
)

// A script is a sequence of events, one per line:
//
//	at 1.5s            the clock moves (since the start of the job), and the job looks at it
//	1 listening        rank 1 says something
//	0 failed blames 1  …
//	2 hungup           rank 2's control connection ends
//	2 exit killed      rank 2's process ends, with a cause or in order
//	stop               a graceful stop is asked for
//
// and play returns the orders given, and the outcome.
func play(t *testing.T, ranks int, script string) (orders []string, err error) {
	t.Helper()
	start := time.Unix(1000, 0)
	now := start
	cfg := Config{Ranks: ranks, JoinTimeout: 10 * time.Second, Silence: 20 * time.Second, Grace: 3 * time.Second, StopGrace: 30 * time.Second}
	j := newJob(cfg, now)
	for r := range ranks {
		j.started(r, 100+r, now)
	}
	drain := func() {
		for _, o := range j.take() {
			what := string(o.msg.Kind)
			if o.kill {
				what = "kill"
			}
			orders = append(orders, fmt.Sprintf("%d %s", o.rank, what))
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(script), "\n") {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		var rank int
		if _, err := fmt.Sscan(f[0], &rank); err == nil {
			e := event{rank: rank, kind: said, msg: message{Kind: kind(f[1]), Text: "x"}}
			switch f[1] {
			case "hungup":
				e.kind, e.cause = hungUp, strings.Join(f[2:], " ")
			case "exit":
				e.kind, e.cause = exited, strings.Join(f[2:], " ")
			case "failed":
				if len(f) == 4 {
					var b int
					if _, err := fmt.Sscan(f[3], &b); err != nil {
						t.Fatal(err)
					}
					e.msg.Blame = []int{b}
				}
			}
			j.happened(e, now)
		} else if f[0] == "stop" {
			j.stop(now)
		} else {
			d, err := time.ParseDuration(f[1])
			if err != nil {
				t.Fatal(err)
			}
			now = start.Add(d)
		}
		j.tick(now)
		drain()
	}
	if !j.over() {
		return orders, errors.New("still running")
	}
	_, err = j.result()
	return orders, err
}

const together = `
	0 listening
	1 listening
	0 connected
	1 connected
`

// TestAbsence: the processes that have not come are named, and whoever was turned away at the door.
func TestAbsence(t *testing.T) {
	now := time.Unix(1000, 0)
	j := newJob(Config{Ranks: 20, JoinTimeout: 10 * time.Second, Silence: time.Minute, Grace: time.Second, Rendezvous: &Rendezvous{Address: "tcp::29500"}}, now)
	for r := range j.ranks {
		j.ranks[r].awaited, j.ranks[r].here = true, r == 0
	}
	j.happened(event{rank: 7, kind: knocked}, now)
	j.happened(event{kind: turned, cause: "10.0.0.7:5000: another secret"}, now)
	j.tick(now.Add(11 * time.Second))
	want := "cluster: of the 20 processes, these did not join the job at port 29500 of this machine within 10s: 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17 and 2 more; " +
		"see that they were started, with the same secret (STARLING_SECRET) and this meeting place, and that no firewall keeps them from it; connections turned away there: 1, the last from 10.0.0.7:5000: another secret"
	if j.failure == nil || j.failure.Error() != want || j.failure.Rank != 1 {
		t.Errorf("%v\nwant %s", j.failure, want)
	}
}

// TestUnstarted: a rank that a command was to start on another host, and that has never spoken, is named with the host and the command.
func TestUnstarted(t *testing.T) {
	now := time.Unix(1000, 0)
	remote := Place{Host: "b", Start: []string{"ssh", "b"}, Program: "/opt/runtime"}
	for _, c := range []struct{ cause, want string }{
		{"exited with code 127", "rank 1 on b exited with code 127 before the ranks were connected: the program there has said nothing; try by hand what starts it: ssh b /opt/runtime version"},
		{"", "rank 1 on b ended without a result before the ranks were connected: the program there has said nothing"},
	} {
		j := newJob(Config{Ranks: 2, JoinTimeout: 10 * time.Second, Silence: time.Minute, Places: []Place{{Host: "a"}, remote}}, now)
		j.happened(event{rank: 1, kind: exited, cause: c.cause}, now)
		if j.failure == nil || !strings.Contains(j.failure.Error(), c.want) {
			t.Errorf("%v\nwant %s", j.failure, c.want)
		}
	}
	j := newJob(Config{Ranks: 2, JoinTimeout: 10 * time.Second, Silence: time.Minute, Places: []Place{{Host: "a"}, remote}}, now)
	j.happened(event{rank: 1, kind: said, msg: message{Kind: kindStatus, Text: "x"}}, now)
	j.happened(event{rank: 1, kind: exited, cause: "exited with code 1"}, now)
	if j.failure == nil || strings.Contains(j.failure.Error(), "by hand") {
		t.Errorf("%v: it was started", j.failure)
	}
}

func TestJob(t *testing.T) {
	hour := ""
	for at := 10 * time.Second; at <= time.Hour; at += 10 * time.Second {
		hour += fmt.Sprintf("at %v\n 0 beat\n 1 beat\n", at)
	}
	for _, c := range []struct {
		name, script string
		orders       string // joined by commas
		err          string // "" for none
	}{
		{"in order", together + "0 done\n 1 done\n 0 exit\n 1 exit", "0 peers,1 peers,0 go,1 go", ""},
		{"dies before joining", "1 exit was killed by signal 9\n 0 exit exited with code 1", "0 fail",
			"rank 1 (pid 101) was killed by signal 9 before the ranks were connected"},
		{"prepares for an hour", "0 listening\n 1 beat\n" + hour + "1 listening\n 0 connected\n 1 connected\n 0 done\n 1 done\n 0 exit\n 1 exit", "0 peers,1 peers,0 go,1 go", ""},
		{"prepares and falls silent", "0 listening\n 1 beat\n at 15s\n 0 beat\n at 21s\n 0 exit\n at 24s\n 1 exit killed", "0 fail,1 fail,1 kill", "rank 1 (pid 101) gave no sign of life for 20s"},
		{"never joins", "0 listening\n at 9s\n 0 beat\n at 11s\n 0 exit\n at 14s\n 1 exit killed", "0 fail,1 fail,1 kill",
			"rank 1 (pid 101) did not join the job within 10s"},
		{"never connects", "0 listening\n 1 listening\n 1 connected\n at 9s\n 0 beat\n 1 beat\n at 11s\n 0 exit\n 1 exit", "0 peers,1 peers,0 fail,1 fail",
			"rank 0 (pid 100) did not connect to the other ranks within 10s"},
		{"cannot connect", "0 listening\n 1 listening\n 1 trouble\n at 9s\n 0 beat\n 1 beat\n at 11s\n 0 exit\n 1 exit", "0 peers,1 peers,0 fail,1 fail",
			"rank 0 (pid 100) did not connect to the other ranks within 10s before the ranks were connected: rank 1 says: x; see that every host reaches this address"},
		{"a peer's report comes before the death", together + "1 status\n 0 failed blames 1\n 0 exit exited with code 1\n at 0.2s\n 1 exit was killed by signal 9",
			"0 peers,1 peers,0 go,1 go", "rank 1 (pid 101) was killed by signal 9 during x, after the ranks were connected"},
		{"a report that nothing explains", together + "0 failed blames 1\n at 0.9s\n 0 exit exited with code 1\n at 1.1s\n 1 exit", "0 peers,1 peers,0 go,1 go,1 fail",
			"rank 1 (pid 101) is blamed by rank 0 after the ranks were connected: x"},
		{"its own report", together + "1 failed\n 1 exit exited with code 1\n 0 failed blames 1\n 0 exit exited with code 1", "0 peers,1 peers,0 go,1 go,0 fail,1 fail",
			"rank 1 (pid 101) failed after the ranks were connected: x"},
		{"no result", together + "1 exit\n 0 exit", "0 peers,1 peers,0 go,1 go,0 fail", "rank 1 (pid 101) ended without a result"},
		{"silence", together + "at 15s\n 0 beat\n at 21s\n 0 exit\n at 24s\n 1 exit killed", "0 peers,1 peers,0 go,1 go,0 fail,1 fail,1 kill",
			"rank 1 (pid 101) gave no sign of life for 20s"},
		{"hangs up and lives on", together + "1 hungup\n at 1.5s\n 0 exit\n at 5s\n 1 exit killed", "0 peers,1 peers,0 go,1 go,0 fail,1 fail,1 kill",
			"rank 1 (pid 101) closed its control connection"},
		{"garbles and lives on", together + "1 hungup noise\n at 1.5s\n 0 exit\n at 5s\n 1 exit killed", "0 peers,1 peers,0 go,1 go,0 fail,1 fail,1 kill",
			"rank 1 (pid 101) sent over its control connection what it should not after the ranks were connected: noise"},
		{"stop", together + "stop\n stop\n 0 done\n 0 exit\n 1 exit", "0 peers,1 peers,0 go,1 go,0 stop,1 stop", ""},
		{"a rank passes a signal on", together + "1 stop\n 0 exit\n 1 exit", "0 peers,1 peers,0 go,1 go,0 stop,1 stop", ""},
		{"stop that is not heeded", together + "stop\n 0 exit\n at 19s\n 1 beat\n at 31s\n at 34s\n 1 exit killed", "0 peers,1 peers,0 go,1 go,0 stop,1 stop,1 fail,1 kill",
			"did not stop within 30s"},
		{"death while stopping", together + "stop\n 1 exit was killed by signal 11\n 0 exit", "0 peers,1 peers,0 go,1 go,0 stop,1 stop,0 fail",
			"rank 1 (pid 101) was killed by signal 11"},
		{"lingers after its result", together + "0 done\n 0 exit\n 1 done\n at 31s\n at 35s\n 1 exit killed", "0 peers,1 peers,0 go,1 go,1 fail,1 kill",
			"rank 1 (pid 101) did not end within 30s of its result"},
	} {
		t.Run(c.name, func(t *testing.T) {
			orders, err := play(t, 2, c.script)
			if got := strings.Join(orders, ","); got != c.orders {
				t.Errorf("orders %s\n want  %s", got, c.orders)
			}
			switch {
			case c.err == "" && err != nil:
				t.Errorf("it ended with %v", err)
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("it ended with %v, want %q", err, c.err)
			}
		})
	}
}

// TestNext: the job asks to be woken no later than it would act.
func TestNext(t *testing.T) {
	start := time.Unix(1000, 0)
	cfg := Config{Ranks: 2, JoinTimeout: 10 * time.Second, Silence: 20 * time.Second, Grace: 3 * time.Second, StopGrace: 30 * time.Second}
	j := newJob(cfg, start)
	expect := func(what string, d time.Duration) {
		t.Helper()
		if got := j.next().Sub(start); got != d {
			t.Errorf("%s: next after %v, want %v", what, got, d)
		}
	}
	expect("forming", 10*time.Second)
	for r := range 2 {
		j.message(r, message{Kind: kindConnected}, start)
	}
	expect("running", 20*time.Second)
	j.message(0, message{Kind: kindFailed, Blame: []int{1}}, start)
	expect("suspecting", settle)
	j.fail(j.suspect, start)
	expect("failing", 3*time.Second)
	j.tick(start.Add(3 * time.Second))
	if at := j.next(); !at.IsZero() {
		t.Errorf("all are killed, and yet next is %v", at)
	}
}

func TestBlamed(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("step 3: %w", err) }
	for want, err := range map[string]error{
		"[]":    errors.New("no such file"),
		"[2]":   wrap(&comm.PeerError{Rank: 2, Cause: comm.ErrLeft}),
		"[1 3]": wrap(&comm.StallError{Missing: []int{1, 3}}),
		"[4]":   wrap(&comm.StallError{Waiting: []int{4}}),
		"[0 5]": wrap(&comm.MismatchError{Calls: []comm.RanksCall{{Ranks: []int{0, 5}}, {Ranks: []int{1, 2, 3}}}}), // all say the same
		"[6]":   wrap(&comm.AbortError{Rank: 6}),
		"[7]":   wrap(&failedElsewhere{rank: 7}),
	} {
		if got := fmt.Sprint(blamed(0, err)); got != want {
			t.Errorf("%v blames %s, want %s", err, got, want)
		}
	}
}

func TestCheckInterface(t *testing.T) {
	for _, c := range []struct {
		addr  string
		hosts int
		ok    bool
	}{
		{"tcp:127.0.0.1:29500", 1, true}, {"unix:/tmp/x", 1, true}, {"tcp:10.0.0.5:29500", 4, true}, {"tcp:gpu-3:0", 2, true},
		{"tcp:127.0.0.1:29500", 2, false}, {"tcp:127.3.0.1:29500", 2, false}, {"tcp:[::1]:0", 2, false}, {"tcp:localhost:1", 2, false},
		{"unix:/tmp/x", 2, false}, {"tcp:nonsense", 2, false},
	} {
		if err := CheckInterface(c.addr, c.hosts); (err == nil) != c.ok {
			t.Errorf("%s over %d hosts: %v", c.addr, c.hosts, err)
		}
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Ranks: 2}, ""},
		{Config{Ranks: 2, Listen: "tcp:127.0.0.1:0"}, ""},
		{Config{}, "at least 1"},
		{Config{Ranks: 2, Grace: -1}, "negative"},
		{Config{Ranks: 2, Listen: "127.0.0.1:29500"}, "tcp:host:port"},
		{Config{Ranks: 2, Hosts: []string{"a"}}, "1 host names for 2 ranks"},
		{Config{Ranks: 2, Transport: "rdma"}, "choose auto, shm, unix, tcp or mpi"},
		{Config{Ranks: 2, Transport: "unix", Listen: "tcp:127.0.0.1:0"}, "leave one of the two out"},
		{Config{Ranks: 1, Transport: "shm"}, ""},
		{Config{Ranks: 2, Transport: "shm", Listen: "tcp:127.0.0.1:0"}, ""},
		{Config{Ranks: 2, Listen: "tcp:127.0.0.1:http"}, "tcp:host:port"},
		{Config{Ranks: 8, Listen: "tcp:127.0.0.1:65530"}, "past 65535"},
	} {
		err := c.cfg.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
	if a, err := listenAddress("tcp:10.0.0.1:4000", "", 3); a != "tcp:10.0.0.1:4003" || err != nil {
		t.Errorf("rank 3 of port 4000 listens at %s, %v", a, err)
	}
}
