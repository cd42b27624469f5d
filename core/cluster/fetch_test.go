//go:build unix

package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"
)

// thing is what the tests ask for: n bytes that both sides know.
func thing(n int) []byte {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return b[:n]
}

// fetchPart asks for things of several sizes, for one that there is not, and for one whose rest is not wanted.
func fetchPart(ctx context.Context, seat *Seat, check func(error)) {
	for _, n := range []int{0, 1, partBytes, 3*partBytes + 5, 1<<20 + 7} {
		r, err := seat.Fetch(ctx, []byte(strconv.Itoa(n)))
		check(err)
		b, err := io.ReadAll(r)
		check(err)
		if string(b) != string(thing(n)) {
			check(fmt.Errorf("asked for %d bytes, %d others came", n, len(b)))
		}
		check(r.Close())
		r, err = seat.Fetch(ctx, []byte("nothing"))
		check(err)
		if b, err := io.ReadAll(r); len(b) != 0 || err == nil || !strings.Contains(err.Error(), "there is no nothing") {
			check(fmt.Errorf("asked for nothing: %d bytes, %v", len(b), err))
		}
		r, err = seat.Fetch(ctx, []byte("half"))
		check(err)
		if b, err := io.ReadAll(r); len(b) != 2*partBytes || err == nil || !strings.Contains(err.Error(), "the disk is gone") {
			check(fmt.Errorf("asked for half: %d bytes, %v", len(b), err))
		}
		r, err = seat.Fetch(ctx, []byte("1000000"))
		check(err)
		_, err = io.ReadFull(r, make([]byte, 10))
		check(err)
		check(r.Close())
	}
}

// TestFetch: what ranks ask their launcher for before they join arrives whole, through inherited connections, a shell's pipes and the rendezvous,
// several ranks at a time; the job then runs as ever.
func TestFetch(t *testing.T) {
	answer := func(w io.Writer, request []byte) error {
		switch string(request) {
		case "nothing":
			return errors.New("there is no nothing")
		case "half":
			_, err := w.Write(thing(2 * partBytes))
			return errors.Join(err, errors.New("the disk is gone"))
		}
		n, err := strconv.Atoi(string(request))
		if err == nil {
			_, err = w.Write(thing(n))
		}
		return err
	}
	t.Run("started here", func(t *testing.T) {
		cfg := testConfig("fetch", 3, -1)
		cfg.Serve = answer
		if results, _, err := launch(t, t.Context(), cfg); err != nil || len(results) != 3 {
			t.Errorf("results %q, %v", results, err)
		}
	})
	t.Run("come by themselves", func(t *testing.T) {
		cfg, address := rendezvousConfig(t, "fetch", 3)
		cfg.Serve = answer
		for n := range 2 {
			startGuest(t, "fetch", address, testSecret, n+1, 3)
		}
		if results, _, err := launch(t, t.Context(), cfg); err != nil || len(results) != 3 {
			t.Errorf("results %q, %v", results, err)
		}
	})
	t.Run("no answers", func(t *testing.T) {
		cfg := testConfig("fetch", 2, -1)
		if _, _, err := launch(t, t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "hands nothing over") {
			t.Errorf("%v", err)
		}
	})
	t.Run("the launcher goes", func(t *testing.T) {
		w := newWorker(t.Context(), 0, 1, func(message) error { return nil })
		r, err := (&Seat{w: w}).Fetch(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(20*time.Millisecond, func() { w.lose(ErrLauncherGone) })
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, ErrLauncherGone) {
			t.Errorf("%v", err)
		}
	})
}
