package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"starling/core/comm"
	"starling/core/comm/machine"
)

// Attendance is what a process that something else has started knows of its job.
type Attendance struct {
	Number, World int    // among the processes of the job; number 0 is the launcher
	Address       string // of the rendezvous, "tcp:host:port"
	Secret        []byte // of the job
	Host          string // the name of this host; by default the machine's identity
	Patience      time.Duration
	// Waiting, if set, is told what keeps this process from its seat: once when it has tried for a while, and then every minute.
	Waiting func(why error)
	// Stop, when closed, asks this process to end: Attend gives up with ErrStopped; once seated, it is passed to the launcher
	// as a request to stop.
	Stop <-chan struct{}
}

// refusal ends the attempts to attend.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

// Attend goes to the rendezvous and waits to be seated. It tries until Patience (default 10 minutes) is over: the launcher may
// start later than its ranks.
func Attend(ctx context.Context, a Attendance) (*Seat, error) {
	r := Rendezvous{Address: a.Address, Secret: a.Secret}
	if err := r.validate(); err != nil {
		return nil, err
	}
	if a.Number < 1 || a.Number >= a.World {
		return nil, fmt.Errorf("cluster: process %d of %d has nobody to attend to", a.Number, a.World)
	}
	authority, err := comm.DeriveAuthority(a.Secret)
	if err != nil {
		return nil, err
	}
	credentials, err := authority.Issue(a.Number)
	if err != nil {
		return nil, err
	}
	patience := cmp.Or(a.Patience, defaultPatience)
	limit := time.Now().Add(patience)
	bounded, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	go func() {
		select {
		case <-a.Stop:
			cancel()
		case <-bounded.Done():
		}
	}()
	tell := time.Now().Add(min(patience/2, firstWaiting))
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		conn, welcome, err := attend(bounded, a, credentials)
		if err == nil {
			return newSeat(ctx, conn, welcome, a.Stop), nil
		}
		var refused *refusal
		if errors.As(err, &refused) {
			return nil, err
		}
		if now := time.Now(); a.Waiting != nil && bounded.Err() == nil && !now.Before(tell) {
			a.Waiting(fmt.Errorf("process %d of %d waits at the rendezvous %s: %w", a.Number, a.World, a.Address, err))
			tell = now.Add(time.Minute)
		}
		select {
		case <-bounded.Done():
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			select {
			case <-a.Stop:
				return nil, ErrStopped
			default:
			}
			return nil, fmt.Errorf("cluster: process %d of %d waited %v at the rendezvous %s: %w", a.Number, a.World, patience, a.Address, err)
		case <-time.After(wait):
		}
	}
}

// defaultPatience is how long ranks that are started one by one are waited for.
const defaultPatience = 10 * time.Minute

// firstWaiting is how long a process tries before it says that it waits: process 0 may be a little later.
const firstWaiting = 10 * time.Second

// notReached adds to the error of a connection to the launcher what there is to look at.
func notReached(err error) error {
	var dns *net.DNSError
	var late net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w; nothing listens there: process 0 has not been started yet, or was told another port", err)
	case errors.As(err, &dns):
		return fmt.Errorf("%w; give an address, or a name that this machine can resolve", err)
	case errors.As(err, &late) && late.Timeout(), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return fmt.Errorf("%w; nobody answers: is this where process 0 runs, and does a firewall let the port through?", err)
	}
	return err
}

// notTrusted does so for the encryption.
func notTrusted(err error) error {
	var other x509.UnknownAuthorityError
	var noise tls.RecordHeaderError
	switch {
	case errors.As(err, &other):
		return fmt.Errorf("the process there has another secret; %s must be the same for all processes of a job", envSecret)
	case errors.As(err, &noise):
		return fmt.Errorf("another program listens there; choose another port for the rendezvous: %w", err)
	}
	return fmt.Errorf("%w (another program may listen there, or the secret is not the same)", err)
}

// attend is one attempt.
func attend(ctx context.Context, a Attendance, credentials *comm.Credentials) (conn net.Conn, welcome message, err error) {
	c, err := (&net.Dialer{Timeout: sendTimeout}).DialContext(ctx, "tcp", strings.TrimPrefix(a.Address, "tcp:"))
	if err != nil {
		return nil, welcome, notReached(err)
	}
	defer func() {
		if err != nil {
			_ = c.Close()
		}
	}()
	_ = c.SetDeadline(time.Now().Add(sendTimeout))
	s, err := comm.Secure(c, credentials, 0)
	if err != nil {
		return nil, welcome, notTrusted(err)
	}
	_ = s.SetDeadline(time.Time{})
	own := machine.ID()
	hello := message{Kind: kindHello, Protocol: controlProtocol, Rank: a.Number, World: a.World, PID: os.Getpid(), Host: cmp.Or(a.Host, own), Machine: own}
	hello.Node, _ = os.Hostname()
	if err := (&control{conn: s}).send(hello); err != nil {
		return nil, welcome, err
	}
	// The others may be long in coming.
	limit, _ := ctx.Deadline()
	_ = s.SetReadDeadline(limit)
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_ = s.SetReadDeadline(time.Now())
	})
	defer func() {
		if !stop() {
			<-woken // or a deadline would reach a seat that came at the same moment
		}
	}()
	if welcome, err = readControl(s); err != nil {
		return nil, welcome, fmt.Errorf("process 0 was reached, and the job has not begun: %w", err)
	}
	switch welcome.Kind {
	case kindWelcome:
		if welcome.Listen == autoListen {
			welcome.Listen = nearby(s)
		}
		return s, welcome, nil
	case kindFail:
		return nil, welcome, &refusal{welcome.Text}
	}
	return nil, welcome, &refusal{fmt.Sprintf("cluster: the launcher says %q instead of a welcome", welcome.Kind)}
}
